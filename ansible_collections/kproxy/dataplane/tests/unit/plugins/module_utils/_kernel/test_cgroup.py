# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the node's cgroup2 hierarchy is, by what the kernel says about mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import (
    NoCgroup2,
    mount_point,
    open_directory,
)

OTHERS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
24 22 0:22 / /proc rw,nosuid - proc proc rw
"""
UNIFIED = "26 22 0:24 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "27 22 0:25 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
HYBRID = "28 22 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n"
BIND = "60 22 0:24 /system.slice/box.service /srv/box/cgroup rw - cgroup2 cgroup2 rw\n"
ODD = "61 22 0:24 / /mnt/two\\040words\\134x rw - cgroup2 none rw\n"

MOUNTS = [
    pytest.param(OTHERS + UNIFIED, "/sys/fs/cgroup", id="unified"),
    pytest.param(OTHERS + V1 + HYBRID, "/sys/fs/cgroup/unified", id="hybrid"),
    pytest.param(OTHERS + BIND + UNIFIED, "/sys/fs/cgroup", id="bind mount of one directory first"),
    pytest.param(OTHERS + BIND, "/srv/box/cgroup", id="nothing but a part"),
    pytest.param(OTHERS + ODD, "/mnt/two words\\x", id="escapes"),
]


@pytest.mark.parametrize(("text", "wanted"), MOUNTS)
def test_the_whole_hierarchy_is_found(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "mountinfo").write_text(text)
    assert mount_point(str(tmp_path / "mountinfo")) == wanted


@pytest.mark.parametrize("text", [OTHERS, OTHERS + V1, ""])
def test_a_host_without_cgroup2_is_told_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "mountinfo").write_text(text)
    with pytest.raises(NoCgroup2, match="unified_cgroup_hierarchy"):
        mount_point(str(tmp_path / "mountinfo"))


def test_a_chosen_directory_that_is_no_cgroup_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NoCgroup2, match="is no cgroup2 directory") as caught:
        open_directory(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
