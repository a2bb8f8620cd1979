"""The page about all nodes that the role `verify` writes: what failed is seen, also on nodes that gave no answer."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from tests.ansible_environment import ansible_environment

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
- name: Write the report of given checks
  hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Judge
      ansible.builtin.set_fact:
        __verify_verdict: "{{ verdicts[inventory_hostname] }}"
      when: inventory_hostname in verdicts
    - name: Report
      ansible.builtin.include_role:
        name: kproxy.dataplane.verify
        tasks_from: report.yml
      when: inventory_hostname in verdicts
"""
ROLE = """
- name: Verify a node that has nothing of ours
  hosts: all
  connection: local
  gather_facts: false
  roles:
    - role: kproxy.dataplane.verify
"""
CHECKS = {
    "gpu-a": [("NodePorts", "ok", "2 dialled"), ("cluster DNS", "skip", "there is none to dial here")],
    "gpu-b": [("NodePorts", "fail", "<10.0.0.1>: reached nothing"), ("cluster DNS", "warn", "slow")],
}


class Cells(HTMLParser):
    """Collects the titles of the cells, row by row, and the text of the verdict."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.verdict = ""
        self._in_verdict = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag == "td" and given.get("title"):
            self.rows[-1].append(str(given["title"]))
        self._in_verdict = tag == "p" and str(given.get("class")).startswith("verdict")

    def handle_data(self, data: str) -> None:
        if self._in_verdict:
            self.verdict += " ".join(data.split())


def test_the_page_shows_every_check_of_every_node(tmp_path: Path) -> None:
    verdicts = {
        node: {
            "checks": [dict(zip(("name", "result", "message"), check, strict=True)) for check in checks],
            "junit": "<testsuite/>",
        }
        for node, checks in CHECKS.items()
    }
    playbook = tmp_path / "play.yml"
    playbook.write_text(PLAYBOOK, encoding="utf-8")
    report = tmp_path / "report"
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "gpu-a,gpu-b,gpu-c,", str(playbook)]
    extra = ["-e", json.dumps({"verdicts": verdicts, "verify_report_dir": str(report)})]
    done = subprocess.run([*command, *extra], cwd=ROOT, env=ansible_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = Cells()
    page.feed((report / "index.html").read_text(encoding="utf-8"))
    assert page.verdict.startswith("3 nodes, 2 checks hold, 1 failed, 1 with a warning, 1 with nothing to try here")
    assert page.verdict.endswith("no answer from gpu-c")
    assert [row for row in page.rows if row] == [
        ["ok: 2 dialled", "fail: <10.0.0.1>: reached nothing", "skip: no answer from this node"],
        ["skip: there is none to dial here", "warn: slow", "skip: no answer from this node"],
    ]
    assert {path.name for path in report.iterdir()} == {
        "gpu-a.json",
        "gpu-a.xml",
        "gpu-b.json",
        "gpu-b.xml",
        "index.html",
    }


def test_a_node_without_an_answer_leaves_no_report_of_an_earlier_run(tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(ROLE, encoding="utf-8")
    report = tmp_path / "report"
    report.mkdir()
    for name in ("gpu-a.json", "gpu-a.xml", "index.html", "gpu-b.json"):
        (report / name).write_text("everything holds")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "gpu-a,", str(playbook)]
    done = subprocess.run(
        [*command, "-e", f"verify_report_dir={report}", "-e", f"ansible_python_interpreter={sys.executable}"],
        cwd=ROOT,
        env=ansible_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "there is no kproxyd on this node; run kproxy.dataplane.site first" in done.stdout + done.stderr
    assert [path.name for path in report.iterdir()] == ["gpu-b.json"]
