"""Symbolic links and special files on the agent face: followed inside the volume, never out of it, never a hang."""

from __future__ import annotations

import errno
import stat

import pytest
from agentface import attr_at, get, link, put, special
from for_each import for_each

from fusebackend.testing.posix.case import fails
from fusebackend.volumes import walk


class TestLinks:
    @pytest.fixture(autouse=True)
    def some_links(self, backend):
        put(backend, "/real/file.txt", b"the needle\n")
        put(backend, "/real/sub/deep.txt", b"deep\n")
        link(backend, "/to-dir", b"real")
        link(backend, "/to-file", b"real/file.txt")
        link(backend, "/real/up", b"../real/sub/../file.txt")
        link(backend, "/real/sub/parent", b"..")
        link(backend, "/chain", b"to-dir/sub/./parent//up")
        link(backend, "/dangling", b"real/none.txt")
        link(backend, "/absolute", b"/real/file.txt")
        link(backend, "/escape", b"../real/file.txt")
        link(backend, "/sneaky", b"real/../../real/file.txt")
        link(backend, "/loop", b"loop")

    @pytest.mark.parametrize(
        "path",
        ["/to-file", "/to-dir/file.txt", "/real/up", "/chain", "/real/sub/parent/file.txt", "/to-dir/sub/parent/up"],
    )
    def test_followed_inside_the_volume(self, backend, path):
        assert get(backend, path) == b"the needle\n"
        assert "needle" in backend.read(path)
        assert backend.grep("needle", path).matches[0]["path"] == path
        assert backend.edit(path, "needle", "pin").error is None
        assert get(backend, "/real/file.txt") == b"the pin\n"

    def test_dot_dot_is_physical(self, backend):
        put(backend, "/elsewhere/file.txt", b"elsewhere")
        link(backend, "/elsewhere/in", b"../real/sub")
        link(backend, "/back", b"elsewhere/in/../file.txt")
        assert get(backend, "/back") == b"the needle\n"
        # In the path of an agent it goes by name, before any link is looked at.
        assert get(backend, "/elsewhere/in/../file.txt") == b"elsewhere"

    @for_each(
        ("path", "number"),
        [
            ("/absolute", errno.EXDEV),
            ("/escape", errno.EXDEV),
            ("/sneaky", errno.EXDEV),
            ("/loop", errno.ELOOP),
            ("/loop/x", errno.ELOOP),
            ("/escape/x", errno.EXDEV),
        ],
    )
    def test_never_out_of_the_volume_and_never_for_ever(self, backend, path, number):
        with fails(number):
            walk.resolve(backend.volume, path)
        assert get(backend, path) == "invalid_path"
        assert backend.upload_files([(path, b"x")])[0].error == "invalid_path"
        assert backend.read(path).error and backend.edit(path, "a", "b").error and backend.ls(path).error
        assert backend.grep("x", path).error and backend.glob("*", path).error
        assert get(backend, "/real/file.txt") == b"the needle\n"

    def test_forty_links_and_no_more(self, backend):
        put(backend, "/link0", b"end")
        for number in range(1, 42):
            link(backend, f"/link{number}", b"link%d" % (number - 1))
        assert get(backend, "/link40") == b"end"
        assert get(backend, "/link41") == "invalid_path"

    def test_ls_shows_all_of_them_and_directories_as_such(self, backend):
        entries = {entry["path"]: entry for entry in backend.ls("/").entries}
        assert set(entries) == {
            "/absolute", "/chain", "/dangling", "/escape", "/loop", "/real/", "/sneaky", "/to-dir/", "/to-file",
        }  # fmt: skip
        assert entries["/to-dir/"]["is_dir"] and not entries["/to-file"]["is_dir"]
        assert entries["/to-file"]["size"] == len(b"the needle\n")
        assert entries["/dangling"]["is_dir"] is False
        assert [entry["path"] for entry in backend.ls("/to-dir/sub").entries] == [
            "/to-dir/sub/deep.txt",
            "/to-dir/sub/parent/",
        ]

    def test_glob_and_grep_do_not_follow(self, backend):
        assert [entry["path"] for entry in backend.glob("*").matches] == ["/real/file.txt", "/real/sub/deep.txt"]
        assert [match["path"] for match in backend.grep("needle").matches] == ["/real/file.txt"]
        assert backend.glob("to-dir/*").matches == []
        # But what they are asked to start from is a path like any other.
        assert [entry["path"] for entry in backend.glob("*.txt", "/to-dir").matches] == [
            "/to-dir/file.txt",
            "/to-dir/sub/deep.txt",
        ]

    def test_delete_and_move_take_the_link_itself(self, backend):
        assert backend.move("/to-dir", "/moved").error is None
        assert stat.S_ISLNK(attr_at(backend, "/moved").mode)
        for path in ("/moved", "/to-file", "/loop", "/escape", "/dangling"):
            assert backend.delete(path).error is None
        assert get(backend, "/real/file.txt") == b"the needle\n"
        assert backend.move("/real/file.txt", "/absolute").error.startswith("Cannot move to /absolute")

    def test_write_does_not_go_through_a_link_and_upload_does(self, backend):
        assert "already exists" in backend.write("/dangling", "x").error
        assert backend.upload_files([("/dangling", b"made")])[0].error is None
        assert get(backend, "/real/none.txt") == b"made"
        assert stat.S_ISLNK(attr_at(backend, "/dangling").mode)
        assert backend.write("/to-dir/new.txt", "x").error is None
        assert get(backend, "/real/new.txt") == b"x"

    def test_a_tree_is_deleted_without_what_its_links_lead_to(self, backend):
        put(backend, "/tree/file.txt")
        link(backend, "/tree/out", b"../real")
        assert backend.delete("/tree").error is None
        assert get(backend, "/real/sub/deep.txt") == b"deep\n"


class TestSpecialFiles:
    @pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
    def test_an_error_and_never_a_hang(self, backend, kind):
        special(backend, "/special", kind)
        assert "Not a regular file" in backend.read("/special").error
        assert "Not a regular file" in backend.edit("/special", "a", "b").error
        assert "Not a regular file" in backend.grep("x", "/special").error
        assert get(backend, "/special") == "invalid_path"
        assert backend.upload_files([("/special", b"x")])[0].error == "invalid_path"
        assert "already exists" in backend.write("/special", "x").error
        assert backend.ls("/special").error == "Path '/special': not_a_directory"

    def test_seen_by_ls_alone_and_deletable(self, backend):
        special(backend, "/fifo")
        put(backend, "/file.txt")
        assert [entry["path"] for entry in backend.ls("/").entries] == ["/fifo", "/file.txt"]
        assert [entry["path"] for entry in backend.glob("*").matches] == ["/file.txt"]
        assert backend.grep("").matches == [{"path": "/file.txt", "line": 1, "text": "x"}]
        assert backend.move("/fifo", "/moved").error is None
        assert backend.delete("/moved").error is None
