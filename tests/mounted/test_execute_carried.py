"""Commands of a mount with a hosted sandbox as its default: the routes' files are carried there and back.

The sandbox is a directory of this machine, reached by commands and two transfers alone, or a container used in the same
way. The hosted ones have the same base class.
"""

from __future__ import annotations

import os
from pathlib import Path

import guests
import pytest
from executing import commands
from test_sandbox_hosted import e2b, modal  # noqa: F401 - fixtures

from fusebackend.backends import CompositeBackend, InMemoryBackend
from fusebackend.server import carrying
from fusebackend.server.carrying import Carrying
from fusebackend.vfs.mounted_tree import FileSystem


def never() -> bool:
    return False


class Both:
    """A sandbox and two routes, one inside the other, with a `Carrying` between them."""

    def __init__(self, sandbox, tmp: Path | None = None) -> None:
        self.sandbox = sandbox
        self.routes = {"/memories": InMemoryBackend(), "/memories/deep": InMemoryBackend()}
        self.backend = CompositeBackend(sandbox, self.routes)
        self.filesystem = FileSystem.of(self.backend, ttl_s=1.0, deadline_s=10.0)
        self.carrying = Carrying(sandbox, self.backend, self.filesystem)

    def write(self, path: str, content: bytes) -> None:
        (response,) = self.backend.upload_files([(path, content)])
        assert response.error is None

    def read(self, path: str) -> bytes | None:
        return self.backend.download_files([path])[0].content

    def there(self, command: str) -> str:
        answer = self.sandbox.execute(f"cd {self.sandbox.root}; {command}", timeout=60)
        assert answer.exit_code == 0, answer
        return "" if answer.output == "<no output>" else answer.output

    def run(self, command: str) -> tuple[str, list[str]]:
        notes = self.carrying.before(never)
        output = self.there(command)
        return output, notes + self.carrying.after()

    def files(self) -> list[str]:
        return sorted(info["path"] for info in self.backend.glob("/memories/**").matches)


@pytest.fixture
def local(tmp_path: Path) -> Both:
    return Both(guests.hosted(str(tmp_path)))


class Plain(guests.sandboxes.BaseSandbox):
    """A container with only the three verbs that a sandbox must have."""

    def __init__(self, box) -> None:
        super().__init__()
        self.box = box

    @property
    def id(self) -> str:
        return "plain"

    def execute(self, command, *, timeout=None):
        return self.box.execute(command, timeout=timeout)

    def upload_files(self, files):
        return self.box.upload_files(files)

    def download_files(self, paths):
        return self.box.download_files(paths)


@pytest.fixture
def container(request):
    from fusebackend.backends import DockerBackend

    engine = request.getfixturevalue("docker_engine")
    with engine.container() as made, DockerBackend(container=made.id, base_url=engine.url) as box:
        yield Both(Plain(box))


@pytest.fixture
def hosted(request):
    """Make a hosted sandbox, over a stand-in of its SDK."""

    def made(name: str) -> Both:
        backend = request.getfixturevalue(name)
        for program in ("ls", "touch"):
            Path(backend.root).parent.joinpath("tools", program).symlink_to(f"/bin/{program}")
        return Both(backend)

    return made


@pytest.fixture
def e2b_sandbox(hosted):
    return hosted("e2b")


@pytest.fixture
def modal_sandbox(hosted):
    return hosted("modal")


@pytest.fixture(params=["local", "e2b_sandbox", "modal_sandbox", pytest.param("container", marks=pytest.mark.services)])
def both(request) -> Both:
    return request.getfixturevalue(request.param)


def test_there_and_back(both: Both) -> None:
    both.write("/memories/a", b"one")
    both.write("/memories/deep/er/b \n'$(x)", b"two\n")
    both.write("/memories/empty", b"")
    output, notes = both.run("cat memories/a memories/deep/er/*; printf three > memories/a; mkdir memories/new; "
                             "echo four > memories/new/c; rm memories/empty; echo five > memories/deep/d")  # fmt: skip
    assert (output, notes) == ("onetwo\n", [])
    assert both.files() == ["/memories/a", "/memories/deep/d", "/memories/deep/er/b \n'$(x)", "/memories/new/c"]
    assert both.read("/memories/a") == b"three"
    assert both.read("/memories/new/c") == b"four\n"
    assert both.routes["/memories/deep"].download_files(["/d"])[0].content == b"five\n", "to the nested route"
    assert both.routes["/memories"].glob("/deep/**").matches == []


def test_only_what_has_changed_is_carried(local: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        local.write(f"/memories/{number}", b"x" * number)
    local.run("true")
    sent, fetched = [], []
    upload, download = local.sandbox.upload_files, local.sandbox.download_files
    monkeypatch.setattr(local.sandbox, "upload_files", lambda files: sent.extend(p for p, _ in files) or upload(files))
    monkeypatch.setattr(local.sandbox, "download_files", lambda paths: fetched.extend(paths) or download(paths))
    local.sandbox.commands.clear()
    local.run("true")
    assert (sent, fetched) == ([], [])
    assert len(local.sandbox.commands) == 3, "a list before it, the command, and a list after it"
    local.write("/memories/3", b"changed")
    local.run("echo more >> memories/5; touch memories/6")
    assert (sent, sorted(fetched)) == (["/memories/3"], ["/memories/5", "/memories/6"])
    assert local.read("/memories/5") == b"xxxxxmore\n"
    local.run("true")
    assert sent == ["/memories/3"]


def test_deleted_and_renamed(both: Both) -> None:
    for name in "abcd":
        both.write(f"/memories/{name}", name.encode())
    both.run("true")
    both.backend.delete("/memories/a")
    both.backend.move("/memories/b", "/memories/b2")
    output, notes = both.run("ls memories; mv memories/c memories/c2; rm memories/d")
    assert (output.split(), notes) == (["b2", "c", "d", "deep"], [])
    assert both.files() == ["/memories/b2", "/memories/c2"]


def test_emptied_directories_go_too(both: Both) -> None:
    for path in ("/memories/one/deep/a", "/memories/two/deep/b", "/memories/kept/c", "/memories/kept/d"):
        both.write(path, b"x")
    both.run("true")
    both.backend.delete("/memories/one")
    output, notes = both.run("ls memories; rm -r memories/two memories/kept/c")
    assert (output.split(), notes) == (["deep", "kept", "two"], [])
    assert [entry["path"] for entry in both.backend.ls("/memories").entries] == ["/memories/deep/", "/memories/kept/"]
    assert both.files() == ["/memories/kept/d"]


def test_a_conflict_keeps_both(both: Both) -> None:
    both.write("/memories/x", b"first")
    both.carrying.before(never)
    both.there("printf theirs > memories/x; printf same > memories/y; rm -f memories/z")
    both.write("/memories/x", b"ours!!")
    both.write("/memories/y", b"same")
    (note,) = both.carrying.after()
    (beside,) = [path for path in both.files() if ".conflict-" in path]
    assert note == f"/memories/x was changed on both sides; the sandbox's version is {beside}"
    assert beside.startswith("/memories/x.conflict-")
    assert (both.read("/memories/x"), both.read(beside)) == (b"ours!!", b"theirs")
    output, notes = both.run("cat memories/x memories/x.conflict-* memories/y")
    assert (output, notes) == ("ours!!theirssame", [])


def test_a_change_is_kept_where_the_other_side_has_deleted(both: Both) -> None:
    both.write("/memories/a", b"1")
    both.write("/memories/b", b"1")
    both.carrying.before(never)
    both.there("rm memories/a; printf changed > memories/b")
    both.write("/memories/a", b"changed")
    both.backend.delete("/memories/b")
    assert both.carrying.after() == []
    assert (both.read("/memories/a"), both.read("/memories/b")) == (b"changed", b"changed")
    assert both.run("cat memories/a memories/b")[0] == "changedchanged"


def test_what_was_changed_between_two_commands_in_the_sandbox(local: Both) -> None:
    """A process that an earlier command left running makes the change."""
    local.write("/memories/a", b"1")
    local.run("true")
    local.there("printf later > memories/late")
    local.run("true")
    assert local.read("/memories/late") == b"later"


def test_a_sandbox_that_is_new_has_deleted_nothing(local: Both) -> None:
    local.write("/memories/a", b"1")
    local.run("true")
    local.there("rm -rf memories .fusebackend-*")
    output, notes = local.run("cat memories/a")
    assert (output, notes, local.read("/memories/a")) == ("1", [], b"1")


def test_what_was_there_before(local: Both) -> None:
    local.there("mkdir -p memories; printf same > memories/same; printf theirs > memories/x; printf new > memories/new")
    local.write("/memories/same", b"same")
    local.write("/memories/x", b"ours")
    _, notes = local.run("true")
    assert len(notes) == 1 and "/memories/x was changed on both sides" in notes[0]
    assert (local.read("/memories/x"), local.read("/memories/new")) == (b"ours", b"new")


def test_programs_stay_programs(local: Both) -> None:
    local.write("/memories/run", b"#!/bin/sh\necho ran\n")
    place = local.routes["/memories"].volume
    from fusebackend.protocol import AttrChanges
    from fusebackend.volumes.walk import resolve

    place.setattr(resolve(place, "/run").found.node, AttrChanges(mode=0o755))
    made = "printf '#!/bin/sh\\necho made\\n' > memories/made; chmod 755 memories/made"
    output, _ = local.run(f"memories/run; {made}")
    assert output == "ran\n"
    assert resolve(place, "/made").found.mode & 0o777 == 0o755


def test_limits_are_said_by_name(local: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(carrying, "MAX_BYTES", 1000)
    monkeypatch.setattr(carrying, "MAX_FILES", 10)
    local.write("/memories/large", bytes(101))
    local.write("/memories/small", b"small")
    local.write("/memories/theirs", b"ours")
    output, notes = local.run("ls memories; printf '%0200d' 0 > memories/made")
    assert output.split() == ["deep", "small", "theirs"]
    assert notes == [
        "/memories/large is not carried: 101 bytes, more than 100",
        "/memories/large is not carried: 101 bytes, more than 100",
        "/memories/made is not carried: 200 bytes, more than 100",
    ]
    assert local.read("/memories/made") is None
    local.there("rm memories/made")

    for number in range(11):
        local.write(f"/memories/{number}", b"x")
    local.write("/memories/deep/still", b"here")
    local.there("printf changed > memories/theirs")
    output, notes = local.run("ls memories; cat memories/deep/still")
    assert output.split() == ["deep", "theirs", "here"], "no copy grows old, and no change is lost"
    changed = "/memories/theirs was changed in the sandbox, and stays there alone"
    assert sorted(notes) == ["/memories/ is not carried: it has more than 10 files"] * 2 + [changed]
    assert local.carrying.unseen == {"/memories": "it has more than 10 files"}
    assert local.read("/memories/small") == b"small"

    for number in range(11):
        local.backend.delete(f"/memories/{number}")
    local.backend.delete("/memories/large")
    local.there("rm memories/theirs")
    output, notes = local.run("ls memories; for n in 0 1 2 3 4 5 6 7 8 9 a b; do echo > memories/$n; done")
    assert (output.split(), local.carrying.unseen) == (
        ["deep", "small", "theirs"],
        {"/memories": "in the sandbox, it has more than 10 files"},
    )
    assert local.there("ls memories").split() == [*"0123456789ab", "deep", "small", "theirs"], (
        "what a command made stays"
    )


def test_a_failure_says_so_and_loses_nothing(local: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write("/memories/a", b"1")
    local.carrying.before(never)
    local.there("printf changed > memories/a")
    working = local.sandbox.execute
    monkeypatch.setattr(local.sandbox, "execute", lambda *a, **o: (_ for _ in ()).throw(RuntimeError("gone")))
    assert local.carrying.after() == ["the routes' files are not carried back yet: RuntimeError: gone"]
    with pytest.raises(OSError, match="gone"):
        local.carrying.before(never)
    monkeypatch.setattr(local.sandbox, "execute", working)
    local.run("true")
    assert local.read("/memories/a") == b"changed"


def test_nothing_of_it_shows(local: Both) -> None:
    local.write("/memories/a", b"needle")
    local.carrying.start()
    local.run("true")
    assert local.sandbox.ls("/").entries == []
    assert [match["path"] for match in local.backend.grep("needle").matches] == ["/memories/a"]
    local.carrying.close()
    assert local.there("ls -A") == "memories\n"


# -- in a mount --------------------------------------------------------------------------------------------------------


def test_a_mount_of_a_sandbox_elsewhere(tmp_path: Path) -> None:
    url = f"python:guests:hosted?directory={tmp_path}"
    with commands(tmp_path / "mnt", url, "/memories=memory:", "/notes/deep=memory:") as shell:
        there = shell.path / "memories"
        shell.files.upload_files([("/memories/verb", b"by a verb")])
        (there / "kernel").write_text("by the kernel")
        made = "printf 'by a command' > memories/command; mkdir -p notes/deep/x; echo > notes/deep/x/y; echo > own"
        assert shell.output(f"cat memories/verb memories/kernel; {made}") == "by a verbby the kernel"
        assert (there / "command").read_text() == "by a command"
        assert shell.download("/memories/command") == b"by a command"
        assert (shell.path / "notes/deep/x/y").exists() and (shell.path / "own").exists()
        shell.output("chmod +x memories/command; echo >> memories/command; rm -r notes/deep/x")
        assert os.access(there / "command", os.X_OK) and os.stat(there / "command").st_mode & 0o111
        assert not (shell.path / "notes/deep/x").exists(), "the kernel hears of all that"
        assert shell.output("pwd; ls; cat", cwd="/memories", stdin=b"input") == (
            f"{tmp_path}/root/memories\ncommand\nkernel\nverb\ninput"
        )
        described = shell.describe()
        assert described["where"] == f"sandbox local-{tmp_path}/root (LocalSandbox)"
        assert (described["routes"], described["unseen_routes"]) == ("carried", {})
        with (there / "large").open("wb") as file:
            file.truncate(carrying.MAX_FILE_BYTES + 1)
        noted = shell.start("cat memories/verb; exit 3", stream=True)
        answer = noted.result()
        most = carrying.MAX_FILE_BYTES
        note = f"/memories/large is not carried: {most + 1} bytes, more than {most}"
        assert answer["exit_code"] == 3
        assert answer["output"].startswith(f"[stderr] fusebackend: {note}\n")
        assert ("stderr", f"fusebackend: {note}\n".encode()) in [(s, p.splitlines(True)[0]) for s, p in noted.pieces]
