"""`VolumeBackend` when storage fails, when others change the tree meanwhile, and at the bounds."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial

import pytest
from agentface import ME, attr_at, get, heard, node_at, put
from raising import raising
from together import together

from fusebackend.base.errors import oserror
from fusebackend.protocol import ROOT_NODE, AttrChanges, unsupported
from fusebackend.testing.posix.case import refused
from fusebackend.volumes import agent_face, contents, walk
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.storage import Inode


class TestUndoing:
    """A verb that fails half-way leaves what was there, and no more."""

    @pytest.fixture
    def fill(self, backend, monkeypatch):
        """Call it, and the disk is full at the second write from there."""

        def fill():
            writes, original = [], backend.volume.write

            def write(node, offset, data):
                writes.append(offset)
                if len(writes) == 2:
                    raise oserror(errno.ENOSPC)
                return original(node, offset, data)

            monkeypatch.setattr(backend.volume, "write", write)
            return writes

        return fill

    def test_a_new_file_on_a_full_disk(self, backend, fill):
        writes = fill()
        (response,) = backend.upload_files([("/new/dir/file.bin", bytes(3 << 20))])
        assert response.error == os.strerror(errno.ENOSPC)
        assert backend.ls("/").entries == []
        assert writes == [0, 1 << 20]

    def test_a_longer_file_in_the_place_of_another_on_a_full_disk(self, backend, monkeypatch):
        before = b"old" * 5000
        put(backend, "/file.bin", before)
        original = backend.volume.write

        def write(node, offset, data):  # as a disk with no block left, which takes what has its blocks already
            written = original(node, offset, data)
            if offset + len(data) > 16384:
                raise oserror(errno.ENOSPC)
            return written

        monkeypatch.setattr(backend.volume, "write", write)
        for _ in range(2):
            (response,) = backend.upload_files([("/file.bin", b"new" * 9000)])
            assert response.error == os.strerror(errno.ENOSPC)
            assert get(backend, "/file.bin") == before
        assert backend.upload_files([("/file.bin", b"new" * 5461)])[0].error is None
        assert get(backend, "/file.bin") == b"new" * 5461

    def test_an_edit_on_a_full_disk(self, backend, fill):
        before = b"start " + b"x" * (2 << 20)
        put(backend, "/file.txt", before)
        fill()
        result = backend.edit("/file.txt", "start", "a longer start")
        assert result.error == f"Error editing file '/file.txt': {os.strerror(errno.ENOSPC)}"
        assert get(backend, "/file.txt") == before

    def test_an_edit_that_can_not_be_undone_is_logged(self, backend, monkeypatch, caplog):
        put(backend, "/file.txt", b"old")

        monkeypatch.setattr(backend.volume, "write", raising(oserror(errno.EIO)))
        assert backend.edit("/file.txt", "old", "new").error
        assert "could not be put back" in caplog.text
        caplog.clear()

    def test_a_move_that_fails_makes_no_parents(self, backend, monkeypatch):
        put(backend, "/file.txt")

        monkeypatch.setattr(backend.volume, "rename", raising(oserror(errno.EROFS)))
        assert backend.move("/file.txt", "/new/dir/file.txt").error.endswith(os.strerror(errno.EROFS))
        assert [entry["path"] for entry in backend.ls("/").entries] == ["/file.txt"]

    def test_a_volume_that_can_not_rename_says_so(self, backend, monkeypatch):
        put(backend, "/file.txt")
        monkeypatch.setattr(backend.volume, "rename", lambda *args: (_ for _ in ()).throw(unsupported("rename")))
        assert "rename" in backend.move("/file.txt", "/moved.txt").error
        assert get(backend, "/file.txt") == b"x"


class TestOthersMeanwhile:
    def test_a_large_file_that_changes_is_read_again(self, backend, tree, monkeypatch):
        old, new = b"o" * (9 << 20), b"n" * (9 << 20)
        node = put(backend, "/file.bin", old)
        original, reads = tree.read, []

        def read(node, offset, size):
            if offset == 4 << 20 and not reads:
                reads.append(offset)
                tree.write(node, 0, new)
            return original(node, offset, size)

        monkeypatch.setattr(tree, "read", read)
        assert get(backend, "/file.bin") == new
        assert reads and node_at(backend, "/file.bin") == node

    def test_a_large_file_that_never_rests_is_read_under_the_lock(self, backend, tree, monkeypatch):
        node = put(backend, "/file.bin", bytes(9 << 20))
        original, versions = tree.read, []

        def read(node, offset, size):
            if offset == 4 << 20:
                versions.append(offset)
                tree.write(node, 0, b"%d" % len(versions))
            return original(node, offset, size)

        monkeypatch.setattr(tree, "read", read)
        assert len(get(backend, "/file.bin")) == 9 << 20
        assert len(versions) == contents.ATTEMPTS + 1
        assert attr_at(backend, "/file.bin").node == node

    def test_the_lock_is_free_between_files_of_a_search(self, backend, tree, monkeypatch):
        for number in range(3):
            put(backend, f"/{number}.txt", b"needle")
        busy = []
        original = agent_face.grepped

        def watch(*args):
            result = original(*args)
            busy.append(tree.lock._is_owned())
            return result

        monkeypatch.setattr(agent_face, "grepped", watch)
        listing, held = walk.entries, []
        monkeypatch.setattr(walk, "entries", lambda *args: held.append(tree.lock._is_owned()) or listing(*args))
        assert len(backend.grep("needle").matches) == 3
        assert busy == [False] and held == [False]

    @pytest.mark.parametrize("verb", ["grep", "glob"])
    def test_a_directory_that_vanishes_during_a_search_is_passed_over(self, backend, tree, monkeypatch, verb):
        put(backend, "/a/file.txt", b"needle")
        put(backend, "/gone/file.txt", b"needle")
        gone, original = node_at(backend, "/gone"), tree.readdir

        def readdir(node, after, limit):
            if node == gone:
                raise oserror(errno.ESTALE)
            return original(node, after, limit)

        monkeypatch.setattr(tree, "readdir", readdir)
        result = backend.grep("needle") if verb == "grep" else backend.glob("*.txt")
        assert [match["path"] for match in result.matches] == ["/a/file.txt"]
        assert not result.truncated

    @pytest.mark.parametrize(("number", "truncated"), [(errno.ESTALE, False), (errno.EACCES, True)])
    def test_a_file_that_can_not_be_opened_during_grep(self, backend, tree, monkeypatch, number, truncated):
        put(backend, "/a.txt", b"needle")
        other, original = put(backend, "/b.txt", b"needle"), tree.open

        def refuse(node, flags):
            if node == other:
                raise oserror(number)
            original(node, flags)

        monkeypatch.setattr(tree, "open", refuse)
        result = backend.grep("needle")
        assert [match["path"] for match in result.matches] == ["/a.txt"]
        assert result.truncated is truncated

    def test_an_error_of_the_storage_ends_a_search(self, backend, tree, monkeypatch):
        put(backend, "/a.txt", b"needle")

        monkeypatch.setattr(tree, "read", raising(oserror(errno.EIO)))
        result = backend.grep("needle")
        assert result.error == f"Error searching '/': {os.strerror(errno.EIO)}" and result.matches is None

    def test_a_directory_that_may_not_be_read_is_told(self, backend, tree, monkeypatch):
        put(backend, "/a.txt")
        put(backend, "/closed/b.txt")
        closed, original = node_at(backend, "/closed"), tree.readdir

        def readdir(node, after, limit):
            if node == closed:
                raise oserror(errno.EACCES)
            return original(node, after, limit)

        monkeypatch.setattr(tree, "readdir", readdir)
        result = backend.glob("*")
        assert [entry["path"] for entry in result.matches] == ["/a.txt"]
        assert (result.truncated, result.truncation_reason) == (True, "unreadable")
        assert backend.grep("x").truncated

    def test_a_directory_put_in_place_of_one_being_deleted_is_left_alone(self, backend, tree, monkeypatch):
        put(backend, "/tree/sub/file.txt")
        put(backend, "/other/kept.txt", b"kept")
        sub, original = node_at(backend, "/tree/sub"), tree.unlink

        def unlink(parent, name):
            original(parent, name)
            if parent == sub:
                tree.rename(node_at(backend, "/tree"), b"sub", ROOT_NODE, b"moved-away")
                tree.rename(ROOT_NODE, b"other", node_at(backend, "/tree"), b"sub")

        monkeypatch.setattr(tree, "unlink", unlink)
        backend.delete("/tree")
        assert node_at(backend, "/moved-away") == sub

    def test_a_directory_whose_way_changes_while_it_is_deleted_stays(self, backend, tree, monkeypatch):
        """What is told to be deleted is told by its path, which it has not any more."""
        put(backend, "/a/b/file.txt")
        original = tree.unlink

        def unlink(parent, name):
            original(parent, name)
            tree.rename(ROOT_NODE, b"a", ROOT_NODE, b"elsewhere")

        monkeypatch.setattr(tree, "unlink", unlink)
        with heard(backend) as changes:
            backend.delete("/a/b")
        assert [change.path for change in changes if change.kind == "deleted"] == ["/a/b/file.txt"]
        assert [info["path"] for info in backend.ls("/elsewhere").entries] == ["/elsewhere/b/"]

    def test_many_writers_of_one_file_make_every_edit(self, backend):
        put(backend, "/count.txt", b"0000")

        def add(letter):
            for _ in range(50):
                assert backend.edit("/count.txt", "0000", f"0000{letter}").error is None

        together(*(partial(add, letter) for letter in "abcd"))
        assert sorted(get(backend, "/count.txt")) == sorted(b"0000" + b"abcd" * 50)

    def test_of_many_writers_one_creates(self, backend):
        results = []
        together(*(lambda n=number: results.append(backend.write("/one/file.txt", str(n))) for number in range(8)))
        assert sum(result.error is None for result in results) == 1


class TestBounds:
    def test_a_sparse_file_of_any_size_costs_nothing(self, backend, tree):
        node = put(backend, "/huge.txt", b"needle\n")
        tree.setattr(node, AttrChanges(size=1 << 50))
        assert get(backend, "/huge.txt") == os.strerror(errno.EFBIG)
        assert backend.read("/huge.txt").error == f"File '/huge.txt': {os.strerror(errno.EFBIG)}"
        assert backend.edit("/huge.txt", "a", "b").error.endswith(os.strerror(errno.EFBIG))
        result = backend.grep("needle")
        assert (result.matches, result.truncated) == ([], True)
        assert backend.ls("/").entries[0]["size"] == 1 << 50
        put(backend, "/huge.txt", b"small")
        assert get(backend, "/huge.txt") == b"small"

    def test_files_too_large_to_search_are_told(self, backend):
        backend.max_search_bytes = 10
        put(backend, "/small.txt", b"needle")
        assert not backend.grep("needle").truncated
        put(backend, "/large.txt", b"needle " * 10)
        result = backend.grep("needle")
        assert [match["path"] for match in result.matches] == ["/small.txt"] and result.truncated
        assert get(backend, "/large.txt") == b"needle " * 10

    def test_a_tree_deeper_than_the_stack_of_python(self, backend, tree):
        parent = ROOT_NODE
        for _ in range(1200):
            parent = tree.mkdir(parent, b"d", 0o755, ME).node
        tree.create(parent, b"deep.txt", 0o644, os.O_WRONLY, ME)
        assert len(backend.glob("deep.txt").matches[0]["path"]) == 2 * 1200 + len("/deep.txt")
        assert backend.delete("/d").error is None
        assert backend.ls("/").entries == []

    def test_listing_and_searching_go_by_pages(self, backend, tree, monkeypatch):
        for number in range(25):
            tree.mknod(ROOT_NODE, b"%03d" % number, stat.S_IFREG | 0o644, 0, ME)
        monkeypatch.setattr(walk, "PAGE_ENTRIES", 10)
        asked, original = [], tree.readdir
        monkeypatch.setattr(tree, "readdir", lambda *args: asked.append(args) or original(*args))
        assert len(backend.ls("/").entries) == len(backend.glob("*").matches) == 25
        assert {limit for _, _, limit in asked} == {10}

    def test_an_anchored_pattern_looks_only_where_it_can_match(self, backend, tree, monkeypatch):
        for path in ("/src/a.py", "/src/lib/b.py", "/other/deep/c.py"):
            put(backend, path)
        looked, original = set(), tree.readdir
        monkeypatch.setattr(tree, "readdir", lambda node, *rest: looked.add(node) or original(node, *rest))
        assert [entry["path"] for entry in backend.glob("src/*.py").matches] == ["/src/a.py"]
        assert looked == {node_at(backend, "/src")}

    @pytest.mark.parametrize("length", [4096, 4097])
    def test_paths_end_at_4096_bytes(self, backend, length):
        path = "/" + "/".join(["n" * 255] * 16)
        path = path[: length - 2] + "/m"
        path += "m" * (length - len(path))
        (response,) = backend.upload_files([(path, b"deep")])
        assert response.error == (None if length == 4096 else "invalid_path")
        if length == 4096:
            assert get(backend, path) == b"deep"


# -- damage ------------------------------------------------------------------------------------------------------------


CHILDREN = [(b"one", 2), (b"other", 3)]


def listed(error: OSError) -> list[bytes]:
    damage = Damage("a volume")

    def inode_of(node: int) -> Inode:
        if node == 2:
            raise error
        inode = Inode(node, stat.S_IFREG | 0o644, parent=0)
        inode.nlink = 1
        return inode

    return [name for name, _ in damage.entries(ROOT_NODE, CHILDREN, inode_of)]


@pytest.mark.parametrize("error", [Damage("a volume").of_inode((2, *range(11))), oserror(errno.ESTALE)])
def test_a_damaged_inode_is_left_out(error: OSError) -> None:
    assert listed(error) == [b"other"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT])
def test_a_disk_or_a_lower_tree_that_does_not_answer_fails_the_listing(number: int) -> None:
    """Without that name in it `rsync --delete` would delete the file elsewhere."""
    refused(number, listed, oserror(number))
