"""`patch.py`: the header of a conversation's patch. `test_git_patch.py` has the patches of files."""

from __future__ import annotations

from fusebackend.backends.threads.patch import Header, patch


def test_it_reads_like_a_log_and_its_header_has_a_line_for_each_field() -> None:
    made = patch(Header("id\nforged", "a\x1b[2J", "d", "s\r\ndiff --git a/x b/x"), {}, {b"f": b"x"}).decode()
    lines = made.split("\n")
    assert lines[0] == "commit id\N{REPLACEMENT CHARACTER}forged"
    assert [line for line in lines if line.startswith("diff ")] == ["diff --git a/f b/f"]
    assert "\x1b" not in made


def test_equal_sets_have_no_patch() -> None:
    assert patch(Header("1", "a", "d", "s"), {b"f": b"x"}, {b"f": b"x"}) == b""


def test_files_are_in_order_of_their_names() -> None:
    made = patch(
        Header("1", "a", "d", "s"), {b"b": b"1\n", b"same": b""}, {b"c": b"2\n", b"a": b"", b"same": b""}
    ).decode()
    assert [line for line in made.splitlines() if line.startswith("diff ")] == [
        "diff --git a/a b/a",
        "diff --git a/b b/b",
        "diff --git a/c b/c",
    ]
