"""`BaseSandbox`: names that look like code, links, modes, who comes second, and costs."""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
import sandboxes
from agentface import get, names
from for_each import for_each
from raising import raising
from stored import put_if

from fusebackend.backends import DockerBackend
from fusebackend.backends.sandbox import base
from fusebackend.backends.sandbox.base import INLINE_FILES, BaseSandbox
from fusebackend.backends.sandbox.scripts import LIBRARY
from fusebackend.protocol import ExecuteResponse
from fusebackend.protocol.versions import digest_of
from fusebackend.testing.each import each

NAMES = (
    "$(touch pwned)", "`touch pwned`", "; touch pwned #", "'; touch pwned; '", '"; touch pwned; "', "a\nb", "\n",
    "ends\n\n", "-rf", "--", "-e", "*", "?", "[a-z]", "\\", "\\n", "%s%n", "$HOME", "!!", "&& touch pwned",
    "| touch pwned", "é\udcff\udc80", "\udcff\n", "\x01\x02", "tab\there", "~", ".fusebackend", ".fusebackend-x~",
    "'", "''", "\r", "日本",
)  # fmt: skip


class StagedLocal(BaseSandbox):
    """`LocalSandbox` with plain transports."""

    def __init__(self, *args, **options):
        self._local = sandboxes.LocalSandbox(*args)
        super().__init__(root=self._local.root, **options)
        self.sent = []

    @property
    def id(self) -> str:
        return self._local.id

    @property
    def commands(self) -> list[str]:
        return self._local.commands

    def execute(self, command, *, timeout=None) -> ExecuteResponse:
        return self._local.execute(command, timeout=timeout)

    def send(self, files) -> None:
        self.sent.append(len(files))
        for path, data in files:
            assert not os.path.lexists(path.encode("utf-8", "surrogateescape"))
            with open(os.fsencode(path), "wb") as file:
                file.write(data)

    def fetch(self, path) -> bytes:
        with open(os.fsencode(path), "rb") as file:
            return file.read()


@pytest.fixture(params=["busybox", "staged"])
def sandbox(request, tmp_path):
    (tmp_path / "root").mkdir()
    tools = sandboxes.tools("gnu" if request.param == "staged" else request.param, tmp_path / "tools")
    kind = StagedLocal if request.param == "staged" else sandboxes.LocalSandbox
    return kind(tmp_path / "root", tools)


every_shell = pytest.mark.parametrize("sandbox", ["gnu", "busybox", "bash", "staged"], indirect=True)
"""What is quoted is put to each; for the rest the two differ in tools and in transports."""


@pytest.fixture
def root(sandbox, tmp_path):
    return tmp_path / "root"


# -- names and contents ------------------------------------------------------------------------------------------------


@every_shell
def test_names_are_never_code(sandbox, root):
    uploads = [(f"/{name}/{name}", name.encode("utf-8", "surrogateescape")) for name in NAMES]
    assert {response.error for response in sandbox.upload_files(uploads)} == {None}
    assert sorted(os.listdir(os.fsencode(root))) == sorted(name.encode("utf-8", "surrogateescape") for name in NAMES)
    assert [response.content for response in sandbox.download_files([path for path, _ in uploads])] == [
        content for _, content in uploads
    ]
    assert [info["path"] for info in sandbox.ls("/").entries] == sorted(f"/{name}/" for name in NAMES)
    assert [info["path"] for info in sandbox.glob("**/*").matches] == sorted(
        path for path, _ in uploads if not path.split("/")[1].startswith(".")
    )
    for name in NAMES[:8]:
        found = [match["path"] for match in sandbox.grep(name).matches]
        expected = [] if "\n" in name else [f"/{name}/{name}"]
        assert found == expected or name in ("*", "?"), name
        assert [info["path"] for info in sandbox.ls(f"/{name}").entries] == [f"/{name}/{name}"]
        assert sandbox.edit(f"/{name}/{name}", name, "x\n").error is None
        assert sandbox.move(f"/{name}/{name}", f"/{name}/other").error is None
        assert sandbox.delete(f"/{name}").error is None
    assert not list(root.rglob("pwned"))


@pytest.mark.parametrize("sandbox", ["gnu", "busybox", "bash"], indirect=True)  # they go in no transport
@for_each("pattern", ["$(touch pwned)", "-e", "--", "-f /etc/passwd", "'", '"', "\\", "[", "*", ".", "^", "%"])
def test_patterns_are_never_code(sandbox, root, pattern):
    sandbox.write("/a.txt", f"one\nwith {pattern} inside\n")
    sandbox.write("/b.txt", "another\n")
    assert [(match["path"], match["line"]) for match in sandbox.grep(pattern).matches][:1] == [("/a.txt", 2)] or (
        pattern == "."
    )
    assert [info["path"] for info in sandbox.glob(pattern).matches or ()] in ([], ["/a.txt", "/b.txt"])
    assert names(sandbox) == ["a.txt", "b.txt"]
    for path in ("/a.txt", "/b.txt"):
        assert sandbox.delete(path).error is None


@every_shell
def test_contents_are_never_code(sandbox):
    for number, content in enumerate(("$(touch /pwned)\n.\nEOF\n'\"\\", ".", ".\n", "\n.\n", "", "\0", "x" * 100_000)):
        assert sandbox.write(f"/{number}", content).error is None
        assert get(sandbox, f"/{number}") == content.encode()


@every_shell
def test_any_bytes_of_any_size(sandbox):
    source = random.Random(7)
    for size in (0, 1, 57, 49_151, 49_152, 49_153, 200_000):
        content = source.randbytes(size)
        assert sandbox.upload_files([("/bytes", content)])[0].error is None
        assert (get(sandbox, "/bytes"), sandbox.ls("/").entries[0]["size"]) == (content, size)


# -- what is in a sandbox besides files --------------------------------------------------------------------------------


def test_links_are_followed_as_the_kernel_does(sandbox, root):
    (root / "dir").mkdir()
    (root / "dir/file").write_text("needle")
    links = {"absolute": root / "dir/file", "to-dir": "dir", "dangling": "nowhere", "loop": "loop"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    shown = {info["path"]: (info["is_dir"], info["size"]) for info in sandbox.ls("/").entries}
    assert shown == {
        "/absolute": (False, 6), "/dangling": (False, 7), "/dir/": (True, 0), "/loop": (False, 4),
        "/to-dir/": (True, 0),
    }  # fmt: skip
    assert "needle" in sandbox.read("/absolute") and "needle" in sandbox.read("/to-dir/file")
    assert sandbox.read("/dangling").error == "File '/dangling' not found"
    for path, found in ((None, "/dir/file"), ("/to-dir", "/to-dir/file")):  # a walk follows no link
        assert [match["path"] for match in sandbox.grep("needle", path).matches] == [found]
    assert sandbox.edit("/absolute", "needle", "pin").error is None
    assert (root / "absolute").is_symlink() and (root / "dir/file").read_text() == "pin"
    assert sandbox.write("/dangling", "x").error.startswith("Cannot write to /dangling because it already exists.")
    assert sandbox.delete("/to-dir").error is None and sandbox.move("/absolute", "/moved").error is None
    assert (root / "dir/file").exists(), "the link is deleted, and not where it leads"
    assert (root / "moved").is_symlink()


def test_special_files_are_not_read(sandbox, root):
    os.mkfifo(root / "fifo")
    assert names(sandbox) == ["fifo"]
    assert sandbox.read("/fifo").error == "File '/fifo': Invalid argument"
    assert sandbox.edit("/fifo", "a", "b").error == "Error editing file '/fifo': Invalid argument"
    assert sandbox.glob("*").matches == [] and sandbox.grep("x").matches == []
    if isinstance(sandbox, StagedLocal):
        for answers in (sandbox.download_files(["/fifo"]), sandbox.upload_files([("/fifo", b"x")])):
            assert answers[0].error == "invalid_path"
    assert sandbox.move("/fifo", "/pipe").error is None
    assert sandbox.delete("/pipe").error is None


def test_modes_and_owners_stay(sandbox, root):
    (root / "script.sh").write_text("old")
    if os.geteuid() == 0:
        os.chown(root / "script.sh", 1234, 4321)
    os.chmod(root / "script.sh", 0o4751)
    assert sandbox.edit("/script.sh", "old", "new").error is None
    status = os.stat(root / "script.sh")
    assert stat.S_IMODE(status.st_mode) == 0o4751
    assert os.geteuid() != 0 or (status.st_uid, status.st_gid) == (1234, 4321)
    assert (root / "script.sh").read_text() == "new"


def test_an_edit_replaces_the_file_at_once(sandbox, root):
    (root / "file").write_text("old\n")
    with open(root / "file") as before:
        assert sandbox.edit("/file", "old", "new").error is None
        assert before.read() == "old\n", "who has it open keeps what it has opened"
    assert os.listdir(root) == ["file"]


def test_nothing_is_left_behind(sandbox, root):
    for path, content in (("/a.txt", "x" * 100), ("/a.txt", "y"), ("/dir/b.txt", "z" * 100_000)):
        sandbox.write(path, content)
    for old in ("z", "none"):
        sandbox.edit("/dir/b.txt", old, "y", replace_all=True)
    sandbox.upload_files([(f"/many/{number}", b"x") for number in range(12)] + [("/a.txt/x", b""), ("/dir", b"")])
    sandbox.grep("x")
    assert [path for path in root.rglob("*") if "fusebackend" in path.name] == []


# -- two ways by size, and one meaning of a path ----

SMALL, LARGE = b"one needle\n", b"one needle\n" + b"hay\n" * 50_000
"""A file that a command carries, and one that is transferred."""

PAGE = Path(__file__).parents[4] / "docs/backends/sandboxes.md"


def of_the_page(root):
    """The class that docs/backends/sandboxes.md shows."""
    (example,) = re.findall(r"```python\n(.*?)\n\nos\.makedirs", PAGE.read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(example, made)
    return made["Here"](root=str(root))


class Async(sandboxes.LocalSandbox):
    """An author with coroutines of their own, of which one calls its base's verb."""

    def upload_files(self, files):
        return super().upload_files(files)

    async def aupload_files(self, files):
        return self.upload_files.__wrapped__(self, files)

    async def adownload_files(self, paths):
        return self.download_files.__wrapped__(self, paths)


class Transfers:
    upload_files = sandboxes.LocalSandbox.upload_files.__wrapped__
    download_files = sandboxes.LocalSandbox.download_files.__wrapped__


class Mixed(Transfers, sandboxes.LocalSandbox):
    """An author whose transfers are those of a class that is no sandbox."""


KINDS = {
    "the page's": lambda root, tools: of_the_page(root),
    "plain": lambda root, tools: sandboxes.LocalSandbox(root, tools()),
    "staged": lambda root, tools: StagedLocal(root, tools()),
    "async": lambda root, tools: Async(root, tools()),
    "mixed": lambda root, tools: Mixed(root, tools()),
}


def test_a_path_is_below_the_root_whatever_the_size_of_the_file(tmp_path):
    for case in each(KINDS):
        with case as kind:
            top = tmp_path / case.name
            root = top / "root"
            (root / "dir").mkdir(parents=True)
            box = kind(root, lambda top=top: sandboxes.tools("gnu", top / "tools"))
            for name, data in {"small": SMALL, "large": LARGE}.items():
                path, there = f"{top}/{name}", root / f"{top}/{name}".lstrip("/")  # is elsewhere without the root
                written = box.write(path, data.decode())
                assert (written.error, there.read_bytes() == data, os.path.lexists(path)) == (None, True, False)
                assert box.edit(path, "one", "two").error is None
                assert there.read_bytes() == data.replace(b"one", b"two")
                assert box.read(path).file_data["content"].startswith("two needle\n")
                assert [match["path"] for match in box.grep("needle", path).matches] == [path]
                (got,) = box.download_files([path])
                assert (got.path, got.error, got.content) == (path, None, there.read_bytes())
                (put,) = box.upload_files([(path, data)])
                assert (put.path, put.error, there.read_bytes() == data) == (path, None, True)
                put, got = anyio.run(both_ways, box, path, data)
                assert (put.path, put.error, got.path, got.content == data) == (path, None, path, True)
                assert put_if(box, path, data + b"!", digest_of(data)) is None
                assert there.read_bytes() == data + b"!"
            assert not (top / "small").exists() and not (top / "large").exists()
            assert box.download_files(["/etc/passwd"])[0].content is None
            asked = box.upload_files([("/../x", b"x"), ("/", b"x"), ("/dir/y", b"y"), ("no\0name", b"z")])
            assert [(put.path, put.error is None) for put in asked] == [
                ("/../x", False), ("/", False), ("/dir/y", True), ("no\0name", False),
            ]  # fmt: skip
            assert [got.content for got in box.download_files(["/..", "/dir/y"])] == [None, b"y"]
            assert not (tmp_path / "x").exists()


async def both_ways(box, path, data):
    (put,) = await box.aupload_files([(path, data)])
    (got,) = await box.adownload_files([path])
    return put, got


# -- who comes second --------------------------------------------------------------------------------------------------


def at_once(calls) -> list:
    start = threading.Barrier(len(calls))

    def run(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


def test_of_two_that_create_a_file_one_is_told(sandbox):
    for attempt in range(5):
        path = f"/{attempt}.txt"
        results = at_once([lambda n=n, path=path: sandbox.write(path, f"{n}" * 1000) for n in range(3)])
        (winner,) = [number for number, result in enumerate(results) if result.error is None]
        assert sandbox.download_files([path])[0].content == f"{winner}".encode() * 1000


def test_of_edits_at_the_same_time_none_is_lost(sandbox):
    sandbox.write("/list.txt", "".join(f"<{number}>\n" for number in range(6)))
    results = at_once([lambda n=n: sandbox.edit("/list.txt", f"<{n}>", f"done {n}") for n in range(6)])
    content = sandbox.download_files(["/list.txt"])[0].content.decode()
    done = [number for number, result in enumerate(results) if result.error is None]
    assert done, "one always comes first"
    for number, result in enumerate(results):
        assert (f"done {number}\n" in content) == (number in done)
        assert result.error is None or "Somebody else has changed the file meanwhile" in result.error


@for_each("shell", [["sh"], ["bash"], ["busybox", "sh"]], ids=" ".join)
def test_a_lock_that_is_released_while_it_is_waited_for_is_taken(tmp_path, shell):
    """Where the directory of the lock could not be made, and was gone a moment later, two scripts had no lock."""
    at_first = 'mkdir() { n=$((n + 1)); [ $n -gt 1 ] && command mkdir "$@"; }\nn=0\n'
    assert locked(tmp_path, shell, at_first) == "held\n"
    (tmp_path / ".fusebackend-lock~").rmdir()
    assert locked(tmp_path, shell, "mkdir() { return 1; }\n") == "none\n", "where there can be none it goes on"


@for_each("shell", [["sh"], ["bash"], ["busybox", "sh"]], ids=" ".join)
def test_a_lock_that_others_take_in_turn_is_not_broken(tmp_path, shell):
    """It was, when ten seconds had gone by, whoever had it then: on a busy machine an edit was lost."""
    in_turn = (
        'lock=$1/.fusebackend-lock~ n=0\nrmdir() { echo "broken by $n"; command rmdir "$@"; }\n'
        'command mkdir "$lock"\n'
        "sleep() {\n"
        '  n=$((n + 1)); command rmdir "$lock"\n'
        '  [ $n -gt 8 ] || { command mkdir "$lock"; touch -d "@$n" "$lock"; }\n'
        "}\n"
    )
    assert locked(tmp_path, shell, in_turn, tries=5) == "held\n"
    assert locked(tmp_path, shell, "sleep() { :; }\nrmdir() { echo broken; command rmdir $1; }\n", tries=5) == (
        "broken\nheld\n"
    ), "one that nobody gives up is"


def locked(directory, shell, before, tries=100):
    """Take the lock of a directory in a shell; return what it printed."""
    library = LIBRARY.replace("-gt 100", f"-gt {tries}")
    after = 'fb_lock "$1"; [ -n "$fb_l" ] && [ -d "$fb_l" ] && echo held || echo none\n'
    words = [*shell, "-c", f"{library}\n{before}\n{after}", "sh", str(directory)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def test_a_lock_that_was_left_is_not_in_the_way(sandbox, root, monkeypatch):
    """Waited for ten seconds in earnest; here the wait is shortened."""
    monkeypatch.setattr(base, "LIBRARY", base.LIBRARY.replace("-gt 100", "-gt 2"))
    sandbox.write("/a.txt", "old")
    (root / ".fusebackend-lock~").mkdir()
    assert names(sandbox) == ["a.txt"]
    assert sandbox.edit("/a.txt", "old", "new").error is None
    assert os.listdir(root) == ["a.txt"]


def test_a_put_over_known_bytes_only(sandbox):
    for data, known, error in [
        (b"one", digest_of(b"other"), "conflict"),
        (b"one", None, None),
        (b"two", None, "conflict"),
        (b"two" * 30_000, digest_of(b"one"), None),
        (b"three", digest_of(b"one"), "conflict"),
    ]:
        assert put_if(sandbox, "/a.txt", data, known) == error, data
    assert sandbox.download_files(["/a.txt"])[0].content == b"two" * 30_000


# -- costs and limits --------------------------------------------------------------------------------------------------


def test_a_verb_is_one_command(sandbox):
    for commands, verb, *arguments in [
        (1, "write", "/a.txt", "one"),
        (1, "read", "/a.txt"),
        (2, "edit", "/a.txt", "one", "two"),
        (1, "ls", "/"),
        (1, "glob", "*.txt"),
        (2, "grep", "two"),
        (1, "grep", "none"),
        (1, "move", "/a.txt", "/b/c.txt"),
        (1, "delete", "/b"),
    ]:
        before = len(sandbox.commands)
        assert getattr(sandbox, verb)(*arguments).error is None
        assert len(sandbox.commands) - before == commands, verb


def test_an_answer_that_the_output_can_not_hold(tmp_path):
    (tmp_path / "root").mkdir()
    small = sandboxes.LocalSandbox(tmp_path / "root", sandboxes.tools("gnu", tmp_path / "tools"), limit=2000)
    for number in range(200):
        (tmp_path / f"root/a-name-of-some-length-{number:03}").write_text("needle\n")
    assert len(names(small)) == 200
    assert len(small.grep("needle").matches) == 200
    assert names(small) == sorted(os.listdir(tmp_path / "root"))


def test_hundreds_of_files_in_one_upload(tmp_path):
    (tmp_path / "root").mkdir()
    staged = StagedLocal(tmp_path / "root", sandboxes.tools("gnu", tmp_path / "tools"))
    files = [(f"/{number % 5}/{number}", b"%d" % number) for number in range(400)]
    files[10], files[20], files[399] = ("/../bad", b""), ("/0", b""), (files[398][0], b"the last one wins")
    responses = staged.upload_files(files)
    failed = {number: response.error for number, response in enumerate(responses) if response.error}
    assert failed == {10: "invalid_path", 20: "is_directory"}
    assert [response.path for response in responses] == [path for path, _ in files]
    found = staged.download_files([path for path, _ in files[200:]])
    assert found[-1].content == found[-2].content == b"the last one wins"
    assert [response.content for response in found[:-2]] == [content for _, content in files[200:-2]]
    assert len(staged.commands) < 15
    # How many make a batch depends on the length of their paths, and a last small batch goes with its command.
    assert 398 - INLINE_FILES <= sum(staged.sent) <= 398


@pytest.mark.parametrize(
    ("execute", "said"),
    [
        (lambda *_, **__: ExecuteResponse("sh: base64: not found", 127), "gave no answer: sh: base64: not found"),
        (lambda *_, **__: ExecuteResponse("", 0), "gave no answer: nothing at all"),
        (lambda *_, **__: ExecuteResponse("Error: Command timed out", 124), "Connection timed out"),
    ],
)
def test_a_sandbox_that_does_not_answer(tmp_path, execute, said):
    sandbox = sandboxes.LocalSandbox(tmp_path, tmp_path)
    sandbox.execute = execute
    for result in (sandbox.read("/a"), sandbox.write("/a", ""), sandbox.ls("/"), sandbox.delete("/a")):
        assert said in result.error and "\n" not in result.error


def test_a_sandbox_that_raises(tmp_path):
    sandbox = sandboxes.LocalSandbox(tmp_path, tmp_path)
    sandbox.execute = raising(RuntimeError("the service says\nno"))
    assert sandbox.read("/a").error == "File '/a': RuntimeError: the service says"


def test_a_full_disk_is_told_in_the_systems_words(docker_engine):
    options = {"network_mode": "none", "tmpfs": {"/small": "size=256k"}}
    with DockerBackend(docker_engine.image, root="/small", base_url=docker_engine.url, options=options) as backend:
        assert backend.write("/a", "x" * 1000).error is None
        assert backend.write("/most", "x" * 200_000).error is None
        for size in (60_000, 600_000):  # in the command, and sent
            (response,) = backend.upload_files([("/big", b"x" * size)])
            assert response.error == os.strerror(errno.ENOSPC)
        assert names(backend) == ["a", "most"]
        assert backend.execute("ls -A").output == "a\nmost\n"
        assert backend.delete("/most").error is None
        assert backend.write("/b", "y").error is None
