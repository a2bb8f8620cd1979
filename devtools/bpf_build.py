# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Compile the eBPF sources with clang and write them as Python modules.

``python3 devtools/bpf_build.py`` rewrites _ebpf/programs/*.py; ``--check`` fails if the sources have changed since.
Needs clang and llvm-strip; nothing on a node does. One object serves x86_64 and aarch64 (both little-endian), from
-mcpu=v3 (Linux 5.1) on.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
EBPF = ROOT / "ansible_collections/kproxy/dataplane/plugins/module_utils/_ebpf"
SOURCES = EBPF / "src"
PROGRAMS = EBPF / "programs"
HEADER = '''# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Written by devtools/bpf_build.py from src/{name}.bpf.c and the headers beside it. Do not edit."""

from __future__ import annotations

COMPILER = "{compiler}"
SOURCE_SHA256 = "{digest}"
OBJECT = """
{text}
"""
'''


def names() -> list[str]:
    """Return the names of all programs, from the sources."""
    return sorted(path.name[: -len(".bpf.c")] for path in SOURCES.glob("*.bpf.c"))


def source_digest(name: str) -> str:
    """Return the digest of a program's source and of all headers."""
    digest = hashlib.sha256()
    for path in [SOURCES / f"{name}.bpf.c", *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compiler() -> str:
    """Return clang's major version, for example ``clang 14``."""
    text = subprocess.run(["clang", "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"clang version (\d+)", text)
    if not match:
        raise SystemExit(f"clang --version says {text.splitlines()[:1]}")
    return f"clang {match.group(1)}"


def multiarch_include() -> str:
    """Return the folder of the asm/ headers of this machine, which clang does not look into for the bpf target."""
    found = sorted(pathlib.Path("/usr/include").glob("*-linux-gnu"))
    if not found:
        raise SystemExit("no /usr/include/*-linux-gnu: install linux-libc-dev")
    return str(found[0])


def compile_program(name: str) -> bytes:
    """Compile one program and return the stripped object."""
    with tempfile.TemporaryDirectory(prefix="kp-bpf-") as folder:
        target = pathlib.Path(folder) / f"{name}.o"
        subprocess.run(
            [
                "clang",
                "-O2",
                "-g",
                "-target",
                "bpf",
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-function",
                "-I",
                multiarch_include(),
                f"-fdebug-prefix-map={SOURCES}=.",
                "-c",
                str(SOURCES / f"{name}.bpf.c"),
                "-o",
                str(target),
            ],
            check=True,
            cwd=SOURCES,
        )
        subprocess.run(
            [
                "llvm-strip",
                "-g",
                "--remove-section=.BTF.ext",
                "--remove-section=.rel.BTF.ext",
                "--remove-section=.rel.BTF",
                "--remove-section=.llvm_addrsig",
                str(target),
            ],
            check=True,
        )
        return target.read_bytes()


def render(name: str) -> str:
    """Return the Python module for one program."""
    packed = base64.b85encode(zlib.compress(compile_program(name), 9)).decode("ascii")
    lines = [packed[start : start + 110] for start in range(0, len(packed), 110)]
    return HEADER.format(name=name, compiler=compiler(), digest=source_digest(name), text="\n".join(lines))


def main() -> int:
    """Build all programs, or check that none is older than its source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare source digests only, compile nothing")
    stale = []
    check = parser.parse_args().check
    for name in names():
        path = PROGRAMS / f"{name}.py"
        if check:
            if not path.exists() or f'SOURCE_SHA256 = "{source_digest(name)}"' not in path.read_text():
                stale.append(name)
        else:
            path.write_text(render(name))
    for name in stale:
        print(f"{name}: the shipped object is older than its source; run devtools/bpf_build.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
