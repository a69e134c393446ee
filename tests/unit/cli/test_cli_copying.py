"""`fusebackend upload` and `download`, over a control server without a mount."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest
from commands import MOUNT, commands
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.backends import InMemoryBackend
from fusebackend.cli import copies
from fusebackend.cli.copies import name_in
from fusebackend.cli.show import Failed
from fusebackend.protocol import ROOT_NODE, AttrChanges, Caller, FileInfo, LsResult
from fusebackend.testing.posix.case import umask

ME = Caller(os.geteuid(), os.getegid())


@pytest.fixture
def files():
    with InMemoryBackend() as files:
        yield files


@pytest.fixture
def command(files, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with commands(files, monkeypatch) as command:
        yield command


@pytest.fixture
def tree(tmp_path) -> Path:
    """A local directory with a bit of everything."""
    tree = tmp_path / "tree"
    (tree / "sub/deep").mkdir(parents=True)
    (tree / "a.txt").write_bytes(b"a")
    (tree / "sub/b").write_bytes(b"\0" * 10)
    (tree / "sub/deep/c").write_bytes(b"")
    (tree / "empty").mkdir()
    (tree / "link").symlink_to("a.txt")
    os.mkfifo(tree / "fifo")
    (tree / os.fsdecode(b"\xff\n")).write_bytes(b"odd")
    return tree


def paths(files) -> list[str]:
    """Of all files."""
    return [found["path"] for found in files.glob("**").matches]


def content(files, path: str) -> bytes | None:
    return files.download_files([path])[0].content


TREE = ["/t/a.txt", "/t/sub/b", "/t/sub/deep/c", "/t/\udcff\n"]


class TestUpload:
    @for_each(("words", "uploaded"), [
        (["tree/a.txt", f"{MOUNT}/new/name"], ["/new/name"]),
        (["tree/a.txt", MOUNT], ["/a.txt"]),
        (["tree/a.txt", f"{MOUNT}/new/"], ["/new/a.txt"]),
        (["tree/sub/b", "tree/sub/deep/c", "--mount", MOUNT, "/two"], ["/two/b", "/two/c"]),
        (["tree/sub", MOUNT], ["/sub/b", "/sub/deep/c"]),
        (["tree/sub/", f"{MOUNT}/other/"], ["/other/sub/b", "/other/sub/deep/c"]),  # a tree keeps its name
        (["tree/link", f"{MOUNT}/x"], ["/x"]),  # what was named may be a link
    ])  # fmt: skip
    def test_where_it_goes(self, command, files, tree, words, uploaded):
        assert command.ok("upload", *words) == ""
        assert paths(files) == uploaded
        assert content(files, uploaded[0]) == (b"a" if "tree/sub" not in words[0] else b"\0" * 10)
        for path in {f"/{path.split('/')[1]}" for path in uploaded}:
            files.delete(path)

    def test_a_tree(self, command, files, tree):
        done = command("upload", "tree", f"{MOUNT}/t")
        assert (done.exit_code, done.stdout) == (0, "")
        assert sorted(paths(files)) == sorted(TREE)
        assert content(files, "/t/sub/b") == b"\0" * 10
        assert sorted(done.stderr.splitlines()) == [
            "fusebackend: left out 'tree/empty': an empty directory",
            "fusebackend: left out 'tree/fifo': a special file",
            "fusebackend: left out 'tree/link': a symbolic link",
        ]

    def test_what_is_in_the_current_directory(self, command, files, tree, monkeypatch):
        monkeypatch.chdir(tree / "sub")
        command.ok("upload", ".", MOUNT)
        assert paths(files) == ["/b", "/deep/c"]

    def test_nothing_is_replaced_unasked(self, command, files, tree):
        files.upload_files([("/t/a.txt", b"old")])
        done = command("upload", "tree/sub", "tree/a.txt", f"{MOUNT}/t")
        assert (done.exit_code, done.stderr) == (1, f"Error: '{MOUNT}/t/a.txt' exists; --force replaces it\n")
        assert content(files, "/t/a.txt") == b"old"
        assert content(files, "/t/sub/b") == b"\0" * 10
        command.ok("upload", "--force", "tree/a.txt", f"{MOUNT}/t")
        assert content(files, "/t/a.txt") == b"a"

    def test_progress_gets_to_its_end_beside_a_file_that_is_refused(self, command, files, tree, monkeypatch):
        files.upload_files([("/t/a.txt", b"old")])
        counted = []

        def counting(doing: str, size_bytes: int, *, quiet: bool):
            counted.append(-size_bytes)
            return contextlib.nullcontext(counted.append)

        monkeypatch.setattr(copies, "progress", counting)
        assert command("upload", "tree/sub", "tree/a.txt", f"{MOUNT}/t").exit_code == 1
        assert len(counted) > 2 and sum(counted) == 0

    def test_two_of_one_name(self, command, files, tree):
        (tree / "sub/a.txt").write_bytes(b"other")
        done = command("upload", "--force", "tree/a.txt", "tree/sub/a.txt", f"{MOUNT}/t/")
        assert (done.exit_code, done.stderr) == (
            1, f"Error: 'tree/sub/a.txt' would go to '{MOUNT}/t/a.txt', as another one does\n",
        )  # fmt: skip
        assert content(files, "/t/a.txt") == b"a"

    def test_many_small_and_some_large(self, command, files, tmp_path, monkeypatch):
        monkeypatch.setattr(copies, "SENT_BYTES", 1000)
        monkeypatch.setattr(copies, "SENT_FILES", 7)
        monkeypatch.setattr(copies, "PIECE_BYTES", 300)
        (tmp_path / "many").mkdir()
        contents = {f"{number:03}": os.urandom(number * 13) for number in range(120)}
        for name, data in contents.items():
            (tmp_path / "many" / name).write_bytes(data)
        found = command.json("upload", "many", f"{MOUNT}/")
        assert {name: content(files, f"/many/{name}") for name in contents} == contents
        assert {(item["path"], item["size"]) for item in found["files"]} == {
            (f"{MOUNT}/many/{name}", len(data)) for name, data in contents.items()
        }

    def test_json(self, command, tree):
        found = command.json("upload", "tree", "--mount", MOUNT, "/t")
        assert {"local": "tree/sub/b", "path": "/t/sub/b", "size": 10} in found["files"]
        assert {"local": "tree/link", "reason": "a symbolic link"} in found["skipped"]

    def test_what_can_not_be_uploaded(self, command, files, tree):
        command.answers(
            ("refused", "No such file or directory: 'none'", "upload", "none", MOUNT),
            ("refused", "'tree/fifo' is neither a file nor a directory", "upload", "tree/fifo", MOUNT),
            ("refused", "…lies in no mount…", "upload", "tree", "/elsewhere"),
        )
        files.write("/file", "")
        for words in (("tree/a.txt", f"{MOUNT}/file/"), ("tree/a.txt", "tree/sub/b", f"{MOUNT}/file")):
            assert command.refused("upload", *words) == f"'{words[-1]}' is not a directory"
        assert "LOCAL" in command.wrong("upload", MOUNT)

    def test_what_fails_besides_what_does_not(self, command, files, tree, monkeypatch):
        put = InMemoryBackend._put_if

        def refuse(self, path, *others, **options):
            if path.endswith("/b"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            put(self, path, *others, **options)

        monkeypatch.setattr(InMemoryBackend, "_put_if", refuse)
        for sent_bytes in (copies.SENT_BYTES, 5):  # with others, and in pieces
            monkeypatch.setattr(copies, "SENT_BYTES", sent_bytes)
            done = command("upload", "--force", "tree/sub", MOUNT)
            assert (done.exit_code, done.stderr) == (1, f"Error: '{MOUNT}/sub/b': No space left on device\n")
            assert paths(files) == ["/sub/deep/c"]

    def test_a_file_that_vanishes(self, command, files, tree, monkeypatch):
        progress = copies.progress

        def late(*words, **options):
            (tree / "sub/b").unlink()
            return progress(*words, **options)

        monkeypatch.setattr(copies, "progress", late)
        done = command("upload", "tree/sub", f"{MOUNT}/t")
        assert (done.exit_code, done.stderr) == (1, "Error: No such file or directory: 'tree/sub/b'\n")
        assert paths(files) == ["/t/deep/c"]

    def test_a_read_only_mount(self, files, tree, monkeypatch):
        monkeypatch.chdir(tree)
        with commands(files, monkeypatch, read_only=True) as command:
            assert "Read-only file system" in command.refused("upload", "a.txt", MOUNT)


class TestDownload:
    @pytest.fixture(autouse=True)
    def stored(self, files):
        files.upload_files([("/t/a.txt", b"a"), ("/t/sub/b", b"\0" * 10), ("/t/sub/deep/c", b"")])
        files.upload_files([("/t/\udcff\n", b"x")])

    def found(self, directory: Path) -> list[str]:
        return sorted(
            os.path.relpath(os.path.join(place, name), directory)
            for place, _, names in os.walk(directory)
            for name in names
        )

    def test_a_file(self, command, tmp_path):
        assert command.ok("download", f"{MOUNT}/t/a.txt", "name") == ""
        assert (tmp_path / "name").read_bytes() == b"a"
        assert command.ok("download", f"{MOUNT}/t/a.txt", ".") == ""
        assert self.found(tmp_path) == ["a.txt", "name"]

    def test_a_tree(self, command, tmp_path):
        assert command.ok("download", f"{MOUNT}/t", "t") == ""
        expected = ["a.txt", "sub/b", "sub/deep/c", os.fsdecode(b"\xff\n")]
        assert self.found(tmp_path / "t") == sorted(expected)
        assert command.ok("download", f"{MOUNT}/t", f"{MOUNT}/t/sub", "into") == ""
        assert sorted(os.listdir(tmp_path / "into")) == ["sub", "t"]
        assert self.found(tmp_path / "into/t") == sorted(expected)

    def test_all_of_a_mount(self, command, tmp_path):
        command.ok("download", "--mount", MOUNT, "/", "all")
        assert (tmp_path / "all/t/a.txt").read_bytes() == b"a"
        command.ok("download", MOUNT, "named/")
        assert (tmp_path / "named/unmounted/t/a.txt").read_bytes() == b"a"

    def test_empty_directories(self, command, files, tmp_path):
        with files.volume.changing():
            files.volume.mkdir(ROOT_NODE, b"empty", 0o755, ME)
        command.ok("download", f"{MOUNT}/empty", "here")
        assert (tmp_path / "here").is_dir()

    def test_modes_follow_the_umask(self, command, files, tmp_path):
        with files.volume.changing():
            node = files.volume.lookup(files.volume.lookup(ROOT_NODE, b"t").node, b"a.txt").node
            files.volume.setattr(node, AttrChanges(mode=0o4777))
        with umask(0o027):
            command.ok("download", f"{MOUNT}/t/a.txt", "name")
        assert stat.S_IMODE((tmp_path / "name").stat().st_mode) == 0o750

    def test_links_and_special_files_are_left_out(self, command, files, tmp_path):
        with files.volume.changing():
            directory = files.volume.lookup(ROOT_NODE, b"t").node
            files.volume.symlink(directory, b"loop", b"..", ME)
            files.volume.mknod(directory, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
        done = command("download", f"{MOUNT}/t", "t")
        assert (done.exit_code, done.stdout) == (0, "")
        assert done.stderr.splitlines() == [
            f"fusebackend: left out '{MOUNT}/t/fifo': a special file",
            f"fusebackend: left out '{MOUNT}/t/loop': a symbolic link",
        ]
        assert not (tmp_path / "t/loop").exists()

    def test_nothing_is_replaced_unasked(self, command, tmp_path):
        (tmp_path / "t").mkdir()
        (tmp_path / "t/a.txt").write_bytes(b"old")
        assert command.refused("download", f"{MOUNT}/t/a.txt", "") == "LOCAL is empty"
        done = command("download", f"{MOUNT}/t/a.txt", f"{MOUNT}/t/sub/b", "t")
        assert (done.exit_code, done.stderr) == (1, "Error: 't/a.txt' exists; --force replaces it\n")
        assert (tmp_path / "t/a.txt").read_bytes() == b"old"
        assert (tmp_path / "t/b").read_bytes() == b"\0" * 10
        command.ok("download", "--force", f"{MOUNT}/t/a.txt", "t")
        assert (tmp_path / "t/a.txt").read_bytes() == b"a"

    def test_not_even_by_somebody_quicker(self, command, tmp_path, monkeypatch):
        monkeypatch.setattr(copies.os.path, "lexists", lambda path: False)
        (tmp_path / "name").write_bytes(b"old")
        assert "exists" in command.refused("download", f"{MOUNT}/t/a.txt", "name")
        assert os.listdir(tmp_path) == ["name"]

    def test_file_systems_without_hard_links(self, command, tmp_path, monkeypatch):
        def refuse(*words):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(copies.os, "link", refuse)
        command.ok("download", f"{MOUNT}/t/a.txt", "name")
        assert os.listdir(tmp_path) == ["name"]

    def test_a_link_that_is_replaced_is_not_followed(self, command, tmp_path):
        (tmp_path / "target").write_bytes(b"old")
        (tmp_path / "name").symlink_to("target")
        assert "exists" in command.refused("download", f"{MOUNT}/t/a.txt", "name")
        command.ok("download", "--force", f"{MOUNT}/t/a.txt", "name")
        assert (tmp_path / "target").read_bytes() == b"old"
        assert (tmp_path / "name").read_bytes() == b"a"

    def test_a_download_that_breaks_off_leaves_nothing(self, command, files, tmp_path, monkeypatch):
        def stop(what, size, *, quiet):
            import contextlib

            @contextlib.contextmanager
            def interrupted():
                def advance(copied):
                    raise KeyboardInterrupt

                yield advance

            return interrupted()

        monkeypatch.setattr(copies, "progress", stop)
        done = command("download", f"{MOUNT}/t/a.txt", "name")
        assert (done.exit_code, done.output, os.listdir(tmp_path)) == (130, "", [])

    def test_json(self, command):
        found = command.json("download", f"{MOUNT}/t/sub", "s")
        assert {"path": f"{MOUNT}/t/sub/b", "local": "s/b", "size": 10} in found["files"]
        assert found["skipped"] == []

    def test_what_can_not_be_downloaded(self, command, files, tmp_path):
        command.answers(
            ("refused", f"'{MOUNT}/none': No such file or directory", "download", f"{MOUNT}/none", "x"),
            ("refused", "…is not a directory…", "download", f"{MOUNT}/t/a.txt", "no/such/name"),
        )
        (tmp_path / "file").write_bytes(b"")
        command.answers(
            ("refused", "'file/' is not a directory", "download", f"{MOUNT}/t/a.txt", "file/"),
            ("refused", "'file' is not a directory", "download", f"{MOUNT}/t", f"{MOUNT}/t/sub/b", "file"),
        )
        (tmp_path / "dir/a.txt").mkdir(parents=True)
        assert command.refused("download", f"{MOUNT}/t/a.txt", "dir") == "'dir/a.txt' is a directory"
        with files.volume.changing():
            files.volume.mknod(ROOT_NODE, b"fifo", stat.S_IFIFO | 0o600, 0, ME)
        assert "is a fifo" in command.refused("download", f"{MOUNT}/fifo", "x")
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize("evil", ["/t/../../evil", "/t/..", "/evil", "/t/a/b", "/t/", "/t/./", "/tt/a", "/t/a\0b"])
    def test_names_that_lead_elsewhere(self, evil, command, tmp_path, monkeypatch):
        answer = LsResult(entries=[FileInfo(path=evil, is_dir=False), FileInfo(path="/t/a.txt", is_dir=False)])
        monkeypatch.setattr("fusebackend.server.mounted.MountedBackend.ls", lambda self, path: answer)
        (tmp_path / "inside").mkdir()
        done = command("download", f"{MOUNT}/t", "inside/t")
        assert done.exit_code == 1
        assert "and is not copied" in done.stderr
        assert self.found(tmp_path) == ["inside/t/a.txt"]


@given(st.text(max_size=8), st.sampled_from(["/", "/t", "/t/u"]))
def test_a_name_leads_nowhere_else(path, directory):
    try:
        name = name_in(directory, path)
    except Failed:
        return
    assert os.path.normpath(os.path.join("/local", name)) == f"/local/{name}"
    assert path.rstrip("/") == f"{directory.rstrip('/')}/{name}"


def test_progress_is_for_terminals(monkeypatch, capsys):
    from fusebackend.cli import progress as shown
    from fusebackend.cli.progress import progress

    with progress("copying", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress("copying", 10, quiet=True) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("short", 10) as advance:
        advance(10)
    monkeypatch.setattr(shown, "DELAY_S", 0.0)
    for size, words in ((10, "10/10 bytes"), (None, "0:00:00")):
        with progress("copying", size) as advance:
            advance(10)
            said = ""
            while "copying" not in said or words not in said:
                said += capsys.readouterr().err
        assert "short" not in said
