"""`VolumeBackend` over the reference volume: what the conformance suite can't see from the agent face alone."""

from __future__ import annotations

import errno
import os
import stat

import pytest
from agentface import attr_at, get, heard, link, node_at, put, special
from for_each import for_each
from raising import raising

from fusebackend.backends.memory import InMemoryBackend, InMemoryVolume
from fusebackend.base.errors import oserror
from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Change, Features, Volume
from fusebackend.testing.posix.case import refused
from fusebackend.volumes import walk
from fusebackend.volumes.agent_face import VolumeBackend


class TestOwnership:
    def test_new_files_and_directories_belong_to_the_process(self, backend):
        put(backend, "/made/dir/file.txt")
        assert stat.S_IMODE(attr_at(backend, "/made/dir/file.txt").mode) == 0o644
        assert stat.S_IMODE(attr_at(backend, "/made/dir").mode) == 0o755
        for path in ("/made", "/made/dir", "/made/dir/file.txt"):
            attr = attr_at(backend, path)
            assert (attr.uid, attr.gid) == (os.geteuid(), os.getegid())

    def test_replacing_keeps_owner_and_mode(self, backend, tree):
        node = put(backend, "/file.txt", b"old and long")
        tree.setattr(node, AttrChanges(mode=0o600, uid=1234, gid=5678))
        put(backend, "/file.txt", b"new")
        assert backend.edit("/file.txt", "new", "newer").error is None
        attr = attr_at(backend, "/file.txt")
        assert (attr.node, stat.S_IMODE(attr.mode), attr.uid, attr.gid) == (node, 0o600, 1234, 5678)


class TestInPlace:
    def test_edit_and_upload_are_seen_through_hard_links_and_open_handles(self, backend, tree):
        node = put(backend, "/one.txt", b"first version")
        tree.link(node, ROOT_NODE, b"two.txt")
        tree.open(node, os.O_RDONLY)
        assert backend.edit("/one.txt", "first", "1st").occurrences == 1
        assert tree.read(node, 0, 100) == b"1st version"
        put(backend, "/two.txt", b"all new")
        assert tree.read(node, 0, 100) == get(backend, "/one.txt") == b"all new"
        assert node_at(backend, "/one.txt") == node_at(backend, "/two.txt") == node
        tree.release(node, os.O_RDONLY)

    def test_write_with_replace_is_in_place_too(self):
        with InMemoryBackend(on_exists="replace") as backend:
            node = put(backend, "/file.txt", b"a long old text")
            assert backend.write("/file.txt", "new").error is None
            assert (node_at(backend, "/file.txt"), get(backend, "/file.txt")) == (node, b"new")
            assert backend.write("/dir/new.txt", "x").error is None
            assert backend.write("/dir", "x").error == "Error writing file '/dir': Is a directory"

    def test_on_exists_is_one_of_two(self):
        with pytest.raises(ValueError, match="on_exists"):
            InMemoryBackend(on_exists="overwrite")

    def test_a_deleted_file_that_nobody_holds_is_freed(self, backend, tree):
        before = tree.statfs().files - tree.statfs().files_free
        put(backend, "/tree/sub/file.txt", b"x" * 100_000)
        assert backend.delete("/tree").error is None
        assert tree.statfs().files - tree.statfs().files_free == before

    def test_handles_are_given_back(self, backend, tree):
        node = put(backend, "/file.txt", b"text\n")
        backend.read("/file.txt")
        backend.edit("/file.txt", "text", "word")
        backend.grep("word")
        get(backend, "/file.txt")
        assert attr_at(backend, "/file.txt").opens == 0
        backend.delete("/file.txt")
        with pytest.raises(OSError):
            tree.getattr(node)


class TestChanges:
    def test_a_new_file_and_its_parents(self, backend):
        with heard(backend) as changes:
            put(backend, "/a/b/file.txt")
        root, a, b = ROOT_NODE, node_at(backend, "/a"), node_at(backend, "/a/b")
        assert set(changes) == {
            Change(node=root),
            Change(a, root, b"a", "created", "/a/"),
            Change(b, a, b"b", "created", "/a/b/"),
            Change(node_at(backend, "/a/b/file.txt"), b, b"file.txt", "created", "/a/b/file.txt"),
        }

    def test_a_move(self, backend):
        node = put(backend, "/from/file.txt")
        with heard(backend) as changes:
            assert backend.move("/from/file.txt", "/to/here.txt").error is None
        old, new = node_at(backend, "/from"), node_at(backend, "/to")
        assert {
            Change(node=old),
            Change(node=node, parent=old, name=b"file.txt"),
            Change(node, new, b"here.txt", "moved", "/to/here.txt", "/from/file.txt"),
            Change(new, ROOT_NODE, b"to", "created", "/to/"),
            Change(node=ROOT_NODE),
        } == set(changes)

    def test_a_deleted_tree_tells_of_every_name(self, backend):
        put(backend, "/tree/one.txt")
        put(backend, "/tree/sub/two.txt")
        tree, sub = node_at(backend, "/tree"), node_at(backend, "/tree/sub")
        with heard(backend) as changes:
            backend.delete("/tree")
        names = {(change.parent, change.name) for change in changes if change.name}
        assert names == {(ROOT_NODE, b"tree"), (tree, b"one.txt"), (tree, b"sub"), (sub, b"two.txt")}
        assert changes[-1] == Change(tree, ROOT_NODE, b"tree", "deleted", "/tree/")
        assert Change(node=ROOT_NODE) in changes


class WholeFileVolume(InMemoryVolume):
    """Stores a file when it is flushed, as whole-file volumes do."""

    features = Features(random_writes=False)

    def __init__(self):
        super().__init__()
        self.flushed = []

    def flush(self, node):
        self.flushed.append(node)


class TestOtherVolumes:
    def test_a_whole_file_volume_is_flushed_before_release(self):
        with VolumeBackend(WholeFileVolume()) as backend:
            node = put(backend, "/file.txt", b"one")
            backend.edit("/file.txt", "one", "two")
            assert backend.volume.flushed == [node, node]

    def test_a_flush_that_fails_is_an_error_and_leaves_no_file(self, monkeypatch):
        with VolumeBackend(WholeFileVolume()) as backend:
            monkeypatch.setattr(backend.volume, "flush", raising(oserror(errno.ENOSPC)))
            assert backend.write("/file.txt", "x").error.endswith(os.strerror(errno.ENOSPC))
            assert backend.ls("/").entries == []

    def test_a_read_only_volume_denies(self, backend, tree, monkeypatch):
        put(backend, "/file.txt", b"text")

        for method in ("create", "mknod", "mkdir", "write", "setattr", "unlink", "rmdir", "rename"):
            monkeypatch.setattr(tree, method, raising(oserror(errno.EROFS)))
        assert backend.upload_files([("/new.txt", b"")])[0].error == "permission_denied"
        assert backend.upload_files([("/file.txt", b"x")])[0].error == "permission_denied"
        for error in (
            backend.write("/new.txt", "x").error,
            backend.delete("/file.txt").error,
            backend.move("/file.txt", "/moved.txt").error,
        ):
            assert os.strerror(errno.EROFS) in error

    def test_a_bug_is_no_error_record(self, backend, tree, monkeypatch):
        """Only what the contract names becomes an error text; a TypeError in a volume must not look like a bad path."""
        monkeypatch.setattr(tree, "lookup", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backend.read("/file.txt")


class TestStrangers:
    def test_changes_of_a_volume_of_another_package_are_refused_or_reported(self):
        """The agent's verbs called what such a volume had not, and raised AttributeError."""

        class Words(Volume):  # docs/backends.md
            def __init__(self) -> None:
                """Its own, which calls no other."""

            def getattr(self, node):
                kind = stat.S_IFDIR | 0o755 if node == ROOT_NODE else stat.S_IFREG | 0o644
                return Attr(node, kind, size=len(b"world") * (node != ROOT_NODE))

            def lookup(self, parent, name):
                if name != b"hello":
                    raise oserror(errno.ENOENT)
                return self.getattr(2)

            def readdir(self, node, after, limit):
                return [] if after else [(b"hello", self.getattr(2))]

            def read(self, node, offset, size):
                return b"world"[offset : offset + size]

            def statfs(self): ...

        with VolumeBackend(Words()) as backend:
            assert backend.read("/hello").file_data["content"] == "world"
            refused_verbs = (
                backend.write("/new", "x"), backend.edit("/hello", "w", "W"), backend.delete("/hello"),
                backend.move("/hello", "/new"), *backend.upload_files([("/hello", b"x")]),
            )  # fmt: skip
            assert all(answer.error for answer in refused_verbs)
            with heard(backend) as changes, backend.volume.changing() as made:
                made.append(Change(node=2))
            assert changes == [Change(node=2)]


class TestTexts:
    @for_each(
        ("verb", "arguments", "error"),
        [
            ("ls", ("/none",), "Path '/none': path_not_found"),
            ("ls", ("/file.txt",), "Path '/file.txt': not_a_directory"),
            ("read", ("/none",), "File '/none' not found"),
            ("read", ("/dir",), "File '/dir': Is a directory"),
            ("read", ("/{x}",), "File '/{x}' not found"),
            ("read", ("/file.txt/x",), "File '/file.txt/x': Not a directory"),
            ("write", ("/file.txt/x", ""), "Error writing file '/file.txt/x': Not a directory"),
            ("write", ("/", ""), "Cannot write to / because it already exists. "
                                 "Read and then make an edit, or write to a new path."),
            ("edit", ("/none", "a", "b"), "Error: File '/none' not found"),
            ("edit", ("/dir", "a", "b"), "Error editing file '/dir': Is a directory"),
            ("edit", ("/data.bin", "a", "b"), "Error: File '/data.bin' is not UTF-8 text and can't be edited"),
            ("delete", ("/none",), "Error: File '/none' not found"),
            ("delete", ("/",), "Error deleting '/': The root can't be deleted"),
            ("move", ("/none", "/x"), "Error: File '/none' not found"),
            ("move", ("/file.txt", "/dir"), "Cannot move to /dir because it already exists."),
            ("move", ("/file.txt", "/file.txt"), "Cannot move to /file.txt because it already exists."),
            ("move", ("/dir", "/dir/x/y"), "Error moving '/dir' to '/dir/x/y': A directory can't be moved into itself"),
            ("move", ("/", "/x"), "Error moving '/' to '/x': The root can't be moved"),
            ("read", ("/../x",), "Path traversal not allowed: '/../x' climbs above the root"),
            ("glob", ("../x",), "Glob pattern '../x' has a '..' segment; give the directory as the path instead"),
            ("grep", ("x", "/", "a/../b"),
             "Glob pattern 'a/../b' has a '..' segment; give the directory as the path instead"),
        ],
    )  # fmt: skip
    def test_errors(self, backend, verb, arguments, error):
        put(backend, "/file.txt", b"text")
        put(backend, "/dir/inner.txt", b"text")
        put(backend, "/data.bin", b"\xff")
        assert getattr(backend, verb)(*arguments).error == error

    def test_what_is_no_bytes_does_not_end_a_batch(self, backend):
        responses = backend.upload_files([("/one.txt", "text"), ("/two.txt", bytearray(b"2")), ("/three.txt", None)])
        assert [response.error for response in responses] == [
            "content must be bytes, not str",
            None,
            "content must be bytes, not NoneType",
        ]
        assert get(backend, "/two.txt") == b"2"

    def test_a_grep_without_a_limit_or_with_none_at_all(self, backend):
        put(backend, "/file.txt", b"a\na\n")
        assert len(backend.grep("a", max_count=None).matches) == 2
        for none in (0, -1):
            result = backend.grep("a", max_count=none)
            assert (result.matches, result.truncated) == ([], True)
        assert backend.grep("absent", max_count=0).truncated is False

    def test_an_empty_filter_is_no_filter(self, backend):
        put(backend, "/file.txt", b"a\n")
        assert len(backend.grep("a", None, "").matches) == 1

    def test_a_read_says_when_the_file_changed(self, backend, tree):
        node = put(backend, "/file.txt", b"a\n")
        tree.setattr(node, AttrChanges(mtime_ns=0))
        assert backend.read("/file.txt").file_data["modified_at"] == "1970-01-01T00:00:00+00:00"
        assert backend.ls("/").entries[0]["modified_at"] == "1970-01-01T00:00:00+00:00"


# -- symbolic links and special files ----------------------------------------------------------------------------------


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
        refused(number, walk.resolve, backend.volume, path)
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
