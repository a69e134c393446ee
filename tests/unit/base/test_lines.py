"""Lines end at LF: of text, and of what the kernel says of mounts and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.base.lines import split_lines
from fusebackend.linux import mount_table
from fusebackend.linux.command import NO_OUTPUT, streams
from fusebackend.protocol import ExecuteResponse
from fusebackend.shell import cgroups

OTHER_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Where `str.splitlines` splits as well."""


@given(st.text("ab\n" + OTHER_ENDS, max_size=20))
def test_lines_put_together_are_the_text(content: str) -> None:
    lines = split_lines(content, with_ends=True)
    assert "".join(lines) == content and all(line.find("\n") in (-1, len(line) - 1) for line in lines)
    assert lines == [line.decode() for line in split_lines(content.encode(), with_ends=True)]
    assert split_lines(content) == [line.removesuffix("\n") for line in lines]
    assert len(lines) == content.count("\n") + (not content.endswith("\n") and content != "")


def test_a_mount_point_with_any_character_is_in_the_table() -> None:
    names = [f"/mnt/a{character}b" for character in OTHER_ENDS]
    line = "{number} 25 0:50 / {name} rw,nosuid - fuse.fusebackend agent\x0cfiles rw,user_id=0\n"
    text = "".join(line.format(number=number, name=name) for number, name in enumerate(names, start=30))
    found = mount_table.parse(text)
    assert [entry.mountpoint for entry in found] == names
    assert {(entry.source, entry.is_ours, entry.owner) for entry in found} == {("agent\x0cfiles", True, 0)}


def test_a_group_with_any_character_is_found(tmp_path: object) -> None:
    name = f"/agents{OTHER_ENDS}"
    table = mount_table.parse(
        "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    )
    found = cgroups.places(f"4:pids:{name}\n3:memory:{name}\n0::/\n", table)
    assert [place.directory for place in found] == [f"/sys/fs/cgroup/pids{name}", f"/sys/fs/cgroup/memory{name}"]


@pytest.mark.parametrize("character", [*OTHER_ENDS])
def test_a_line_of_output_is_of_stderr_from_its_begin_alone(character: str) -> None:
    text = f"out{character}[stderr] not\n[stderr] error{character}more\n"
    assert streams(ExecuteResponse(output=text + NO_OUTPUT, exit_code=0)) == (
        f"out{character}[stderr] not\n", f"error{character}more\n", False,
    )  # fmt: skip
