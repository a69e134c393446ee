"""Snapshots of a mount, seen by unix tools, by agents and by the command."""

from __future__ import annotations

import errno
import json
import os
import pty
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import mounts
import pytest
from eventually import eventually
from mounts import Mounted, Serve
from profiles import amount
from programs import command, sh
from trees import snapshot as attributes

import fusebackend
from fusebackend.backends import InMemoryBackend
from fusebackend.linux import mount_table as table

pytestmark = pytest.mark.mounted

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
POSTGRES = pytest.param("postgres:{dsn}?volume=v", marks=pytest.mark.services)
KINDS = ["memory:", "sqlite:{tmp}/volume.db", POSTGRES]
"""URLs of volumes that keep snapshots; `{tmp}` is a directory, `{dsn}` a database."""

MANUAL = ["snapshots=manual"]
"""So that no other snapshots than those of a test are there."""

ROUNDS = amount("FUSEBACKEND_SNAPSHOT_ROUNDS", day=12, night=100)

SCENE = r"""
umask 022
mkdir -p src/deep/er docs empty
echo one > src/one; echo two > src/deep/two; printf 'no newline' > docs/plain
head -c 300000 /dev/urandom > src/large
truncate -s 3M src/sparse; printf end >> src/sparse
ln src/one docs/linked; ln -s ../src/one docs/link; ln -s /nowhere docs/dangling
mkfifo docs/fifo; chmod 4755 src/deep/two; chmod 1777 empty; chmod 0 docs/plain
setfattr -n user.tag -v value src/one; setfattr -n user.dir -v yes src/deep
touch -d '2001-02-03 04:05:06.789' src/deep/two; touch -h -d '1999-01-01' docs/link; touch -d '1950-01-01' src/deep/er
printf x > "$(printf 'odd \n\377 name')"
cd src; git init -q .; git add one deep; git -c user.name=n -c user.email=e commit -qm one
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    dsn = request.getfixturevalue("postgres_dsn") if "{dsn}" in request.param else ""
    return str(request.param).format(tmp=tmp_path, dsn=dsn)


@pytest.fixture
def mounted(kind: str, serve: Serve) -> Mounted:
    return serve(kind, routes={"/notes": "memory:"}, options=MANUAL)


def kept(mounted: Mounted, name: str = "") -> Path:
    return mounted.path / ".fusebackend/snapshots" / name


def same(snapshot: Path, copy: Path) -> None:
    """Compare a snapshot with a copy by the tools that users have, and by what these do not compare."""
    sh(f"diff -r --no-dereference -x fifo '{snapshot}' '{copy}'", snapshot)
    if shutil.which("rsync"):
        assert sh(f"rsync -aHXn --checksum --delete -i '{snapshot}/' '{copy}/'", snapshot) == ""
    assert attributes(snapshot) == attributes(copy)


def changed(source: random.Random, at: Path) -> None:
    """Change something, by a command that people use."""
    script = source.choice(
        [
            "rm -rf src/deep",
            "mkdir -p src/deep/er/new; echo new > src/deep/er/new/file",
            "find . -name '*.tmp' -delete; echo $RANDOM > $RANDOM.tmp",
            "sed -i s/one/uno/ src/one || true",
            "echo more >> docs/linked",
            "head -c 100000 /dev/urandom | dd of=src/large bs=64k seek=1 conv=notrunc status=none",
            "truncate -s 100 src/large; truncate -s 1M src/sparse",
            "chmod 700 src; chmod 755 src; chown 1000:1000 docs",
            "setfattr -n user.tag -v other src/one; setfattr -x user.dir src/deep 2>/dev/null || true",
            "mv docs docs2; mv docs2 docs; ln -sf elsewhere docs/link",
            "cp -a src src2; rm -rf src2/.git; mv src2/* docs/ 2>/dev/null || true; rm -rf src2",
            "cd src; echo $RANDOM > tracked; git add tracked; git -c user.name=n -c user.email=e commit -qm more",
            "cd src; git -c gc.auto=0 gc -q; git checkout -q . ; git clean -fdxq",
            "ls -lR . > /dev/null; cat src/one > /dev/null || true; touch -a src/large",
        ]
    )
    sh(f"umask 022; {{ {script}; }} 2>/dev/null || true", at)


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_a_frozen_copy(mounted: Mounted, tmp_path: Path) -> None:
    """`cp -a` and a snapshot at the same moment; then random changes by bash and git, and more of both."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to change owners")
    seed = int(os.environ.get("FUSEBACKEND_SEED", "7"))
    source = random.Random(seed)
    sh(SCENE, mounted.path)
    sh("echo note > notes/note; mkdir notes/d; ln notes/note notes/d/linked", mounted.path)
    copies: dict[str, Path] = {}
    with fusebackend.connect(mounted.path) as client:
        for number in range(ROUNDS):
            name = f"round{number}"
            copies[name] = tmp_path / name
            sh(f"cp -a . '{copies[name]}'", mounted.path)
            client.create_snapshot(name)
            for _ in range(source.randrange(1, 8)):
                changed(source, mounted.path)
            if len(copies) > 6:
                gone = source.choice(sorted(copies))
                client.delete_snapshots(gone)
                shutil.rmtree(copies.pop(gone))
                assert not kept(mounted, gone).exists()
            for each in source.sample(sorted(copies), min(2, len(copies))):
                same(kept(mounted, each), copies[each])
        for each, copy in copies.items():
            same(kept(mounted, each), copy)
        assert sorted(os.listdir(kept(mounted))) == sorted(copies)


def test_tools_work_on_it(mounted: Mounted, tmp_path: Path) -> None:
    sh(SCENE, mounted.path)
    with fusebackend.connect(mounted.path) as client:
        client.create_snapshot("before")
    sh("rm -rf src/deep docs/linked; echo changed > src/one; echo new > src/new", mounted.path)
    before = kept(mounted, "before")
    told = subprocess.run(
        ["git", "diff", "--no-index", "--stat", f"{before}/src", "src"],
        cwd=mounted.path,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1 and "new" in told.stdout and "two" in told.stdout, told.stderr
    assert sh("git -C src status --short", before) == "?? large\n?? sparse\n"
    assert sh("git -C src log --format=%s", before) == "one\n"
    assert sh("grep -rl two src/deep", before) == "src/deep/two\n"
    sh(f"tar cf {tmp_path}/all.tar . && tar df {tmp_path}/all.tar", before)
    # Getting back: a file, a directory, everything.
    sh(f"cp -a {before}/src/one src/one; cp -a {before}/src/deep src/", mounted.path)
    assert (mounted.path / "src/one").read_text() == "one\n"
    assert (mounted.path / "src/deep/two").stat().st_mode == (before / "src/deep/two").stat().st_mode
    if shutil.which("rsync"):
        sh(f"rsync -aHX --delete {before}/ ./", mounted.path)
        assert sh(f"rsync -aHXn --checksum --delete -i {before}/ ./", mounted.path) == ""


def test_an_open_file_is_in_it_as_it_was(mounted: Mounted) -> None:
    path = mounted.path
    (path / "open").write_text("before")
    (path / "nameless").write_text("nameless")
    with (path / "open").open("r+b", buffering=0) as opened, (path / "nameless").open("r+b", buffering=0) as nameless:
        (path / "nameless").unlink()
        with fusebackend.connect(path) as client:
            client.create_snapshot("one")
        opened.write(b"AFTER!")
        (path / "open").unlink()
        nameless.write(b"N")
        assert nameless.seek(0) == 0 and nameless.read() == b"Nameless"
        assert sorted(os.listdir(kept(mounted, "one"))) == ["notes", "open"]
        assert kept(mounted, "one/open").read_text() == "before"
    assert kept(mounted, "one/open").read_text() == "before"
    assert not (path / "open").exists()


def test_a_mapping_of_it_stays(mounted: Mounted) -> None:
    import mmap

    file = mounted.path / "file"
    file.write_bytes(b"a" * 8192)
    with fusebackend.connect(mounted.path) as client:
        client.create_snapshot("one")
        with kept(mounted, "one/file").open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
            file.write_bytes(b"b" * 8192)
            assert mapped[:] == b"a" * 8192
            assert os.fstat(opened.fileno()).st_ino != file.stat().st_ino
            mapped.close()


# -- kernel caches ---------------------------------------------------------------------------------------------------


def test_names_come_and_go_at_once(mounted: Mounted) -> None:
    """Absence, listings and names are cached for an hour: each change is seen by the next system call."""
    with fusebackend.connect(mounted.path) as client:
        for number in range(20):
            (mounted.path / "file").write_text(str(number))
            assert not kept(mounted, "one").exists() and os.listdir(kept(mounted)) == []
            client.create_snapshot("one")
            assert kept(mounted, "one").exists() and os.listdir(kept(mounted)) == ["one"]
            assert kept(mounted, "one/file").read_text() == str(number)
            assert not kept(mounted, "one/other").exists()
            assert os.listdir(kept(mounted, "one")) == ["file", "notes"]
            client.delete_snapshots("one")
            with pytest.raises(FileNotFoundError):
                kept(mounted, "one/file").read_text()


def test_nothing_in_it_can_be_changed(mounted: Mounted) -> None:
    sh(SCENE, mounted.path)
    with fusebackend.connect(mounted.path) as client:
        client.create_snapshot("one")
    one = kept(mounted, "one")
    for script in (
        "touch new", "rm src/one", "mkdir new", "rmdir empty", "mv src/one src/uno", "ln src/one new", "chmod 600 docs",
        "ln -s x new", "echo x >> src/one", "truncate -s 0 src/one", "setfattr -n user.x -v y src/one", "touch src/one",
        "mknod new p", "echo x > notes/new", "rmdir ../one", "mv ../one ../two", "mkdir ../new", "mv ../one ../../new",
        "mv ../../../src/one .", "rmdir ../../snapshots", "mv ../../snapshots ../../../moved",
    ):  # fmt: skip
        done = subprocess.run(["sh", "-c", script], cwd=one, capture_output=True, text=True)
        assert done.returncode != 0, script
        expected = ("Read-only file system", "Device or resource busy", "cross-device link", "Invalid cross-device")
        assert any(words in done.stderr for words in expected), (script, done.stderr)
    with (one / "src/one").open("rb") as opened:
        assert opened.read() == b"one\n"


def test_every_file_has_a_number_of_its_own(mounted: Mounted) -> None:
    """`diff` and `cp` take equal st_dev and st_ino for the same file, and would compare and copy nothing."""
    sh(SCENE, mounted.path)
    with fusebackend.connect(mounted.path) as client:
        client.create_snapshot("one")
        client.create_snapshot("two")
    seen: dict[int, set[str]] = {}
    for top in (mounted.path, kept(mounted, "one"), kept(mounted, "two")):
        for directory, names, files in os.walk(top):
            for name in [*names, *files]:
                status = os.lstat(os.path.join(directory, name))
                assert status.st_dev == mounted.path.stat().st_dev
                seen.setdefault(status.st_ino, set()).add(str(top))
    assert {len(tops) for tops in seen.values()} == {1}


def test_it_is_not_in_the_way(mounted: Mounted) -> None:
    (mounted.path / "file").write_text("needle")
    with fusebackend.connect(mounted.path) as client:
        client.create_snapshot("one")
        assert ".fusebackend" not in os.listdir(mounted.path)
        assert [match["path"] for match in client.grep("needle").matches or ()] == ["/file"]
        found = client.grep("needle", "/.fusebackend/snapshots").matches or ()
        assert [match["path"] for match in found] == ["/.fusebackend/snapshots/one/file"]
        assert client.stat("/.fusebackend/snapshots/one/file").size == 6
        assert client.write("/.fusebackend/snapshots/one/new", "x").error
        assert client.delete("/.fusebackend/snapshots/one").error
        seen = client.execute("ls -A /.fusebackend 2>&1; true").output
        assert "No such file" in seen
        refused = client.run("ls", cwd="/.fusebackend/snapshots/one")
        assert refused.output == (
            "Error: commands don't see '/.fusebackend', the mount's own directory: start the command elsewhere, and "
            "copy there what it needs"
        )
        assert client.run("ls", cwd="/").output == "file\nnotes\n"
    assert sh("find . -name file", mounted.path) == "./file\n"


@pytest.mark.parametrize("shown", ["visible", "off"])
def test_options_of_the_trees_directory_hold_for_it(kind: str, serve: Serve, shown: str) -> None:
    mounted = serve(kind, options=[f"trees={shown}", *MANUAL])
    with fusebackend.connect(mounted.path) as client:
        (route,) = client.status()["routes"]
        if shown == "off":
            with pytest.raises(OSError, match="mount without '-o trees=off'") as refused:
                client.create_snapshot()
            assert refused.value.errno == errno.ENOTSUP and client.snapshots() == []
            assert not kept(mounted).exists()
        else:
            (mounted.path / "file").write_text("needle")
            client.create_snapshot("one")
            assert sh("find . -name 'file' -o -name snapshots", mounted.path) == "./file\n"
            assert kept(mounted, "one/file").read_text() == "needle"
            assert [match["path"] for match in client.grep("needle").matches or ()] == ["/file"]
            assert len(client.grep("needle", "/.fusebackend").matches or ()) == 1
            assert route["undo"] == "copies"  # its automatic snapshots are off


# -- Python, the socket and the command ------------------------------------------------------------------------------


def test_a_read_only_mount_takes_and_deletes_none(kind: str, serve: Serve) -> None:
    mounted = serve(kind, options=["ro"])
    with fusebackend.connect(mounted.path) as client:
        assert client.snapshots() == []
        for change in (client.create_snapshot, lambda: client.delete_snapshots("one")):
            with pytest.raises(OSError) as refused:
                change()
            assert refused.value.errno == errno.EROFS
    done = command("snapshot", "create", "--mount", mounted.path)
    assert (done.returncode, done.stderr) == (1, "Error: Read-only file system: this mount is read-only\n")


def test_a_mount_without_such_routes_says_so(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(f"dir:{tmp_path}/files")
    done = command("snapshot", "create", cwd=mounted.path)
    assert done.returncode == 1 and done.stderr.startswith("Error: no route of this mount keeps snapshots"), done.stderr
    assert command("snapshot", "list", cwd=mounted.path).stdout == ""
    assert [route["undo"] for route in json.loads(command("status", "--json", mounted.path).stdout)[0]["routes"]] == [
        "copies"
    ]
    assert not kept(mounted).exists()


def test_the_command(mounted: Mounted) -> None:
    (mounted.path / "d").mkdir()
    (mounted.path / "d/file").write_text("before")
    taken = command("snapshot", "create", "one", cwd=mounted.path / "d")
    assert (taken.returncode, taken.stdout, taken.stderr) == (0, f"{kept(mounted, 'one')}\n", "")
    given = command("snapshot", "create", "--json", "--mount", mounted.path)
    second = json.loads(given.stdout)
    assert second["routes"] == ["/", "/notes/"] and second["path"] == str(kept(mounted, second["name"]))
    lines = command("snapshot", "list", cwd=mounted.path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["one", second["name"]]
    assert lines[0].endswith("  / /notes/")
    told = json.loads(command("snapshot", "list", "--json", cwd=mounted.path).stdout)
    assert [each["name"] for each in told] == ["one", second["name"]] and told[1] == second
    for words, message in (
        (("create", "one"), "there is a snapshot 'one' already; choose another name, or delete that one"),
        (("create", "a/b"), "snapshot name 'a/b' holds a slash; give another one, such as 'before-upgrade'"),
        (("delete", "one"), "a deleted snapshot can't be had back, and there is no terminal to ask on: add --yes"),
        (
            ("delete", "one", "two", "--yes"),
            "there is no snapshot 'two', and nothing was deleted; 'snapshot list' shows them",
        ),
    ):
        done = command("snapshot", *words, cwd=mounted.path)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {message}\n")
    assert sorted(os.listdir(kept(mounted))) == sorted(["one", second["name"]])
    assert command("read", kept(mounted, "one/d/file")).stdout == "before"
    done = command("snapshot", "delete", "one", "--yes", cwd=mounted.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(kept(mounted)) == [second["name"]]
    assert "copies" in command("status", mounted.path).stdout


@pytest.mark.parametrize(("answer", "left"), [("y", []), ("n", ["one"]), ("", ["one"])])
def test_on_a_terminal_the_command_asks(mounted: Mounted, answer: str, left: list[str]) -> None:
    command("snapshot", "create", "one", cwd=mounted.path)
    output = on_terminal(["snapshot", "delete", "one"], mounted.path, answer + "\n")
    assert "Delete snapshot 'one'? [y/N]" in output
    assert os.listdir(kept(mounted)) == left


def on_terminal(words: Sequence[str], cwd: Path, typed: str) -> str:
    """Run the command on a terminal; return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fusebackend", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # EIO: the other side is closed
        pass
    process.wait(LIMIT_S)
    os.close(ours)
    return shown.decode()


def test_hostile_names(mounted: Mounted) -> None:
    names = ["new\nline", "\x1b[31mred", "odd \udcff", "$(touch x)", "a 'quote\"", "%s", "x" * 255, "é", ".hidden", "*"]
    with fusebackend.connect(mounted.path) as client:
        for name in names:
            client.create_snapshot(name)
        assert [each.name for each in client.snapshots()] == names
        assert {os.fsencode(name) for name in names} == set(os.listdir(os.fsencode(kept(mounted))))
        told = json.loads(command("snapshot", "list", "--json", cwd=mounted.path).stdout)
        assert [each["name"] for each in told] == names
        shown = on_terminal(["snapshot", "list"], mounted.path, "")
        assert "\x1b[31m" not in shown and "new\\nline" in shown
        assert b"\x1b[31mred" in subprocess.run(["ls"], cwd=kept(mounted), capture_output=True, check=True).stdout
        for name in names:
            assert os.listdir(kept(mounted, name)) == ["notes"]
            done = command("snapshot", "delete", "--yes", "--", name, cwd=mounted.path)
            assert (done.returncode, done.stderr) == (0, "")
        assert os.listdir(kept(mounted)) == []


# -- at the same time ------------------------------------------------------------------------------------------------


def test_readers_while_snapshots_come_and_go(mounted: Mounted) -> None:
    """Every read below a snapshot gives the bytes of that snapshot, or the error of one that is gone."""
    path = mounted.path
    (path / "d").mkdir()
    ended = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not ended.is_set():
            for name in os.listdir(kept(mounted)):
                try:
                    first = kept(mounted, f"{name}/d/first").read_text()
                    second = kept(mounted, f"{name}/d/second").read_text()
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESTALE):
                        wrong.append(error)
                    continue
                if not first == second == f"{name}\n" * 3000:
                    wrong.append((name, first[:20], second[:20]))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        with fusebackend.connect(path) as client:
            names: list[str] = []
            for number in range(60):
                names.append(f"s{number % 7}-{number}")
                for file in ("first", "second"):
                    (path / "d" / file).write_text(f"{names[-1]}\n" * 3000)
                client.create_snapshot(names[-1])
                if len(names) > 4:
                    client.delete_snapshots(names.pop(number % 5))
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert not wrong, wrong[:5]
    assert table.probe(str(path)).state == "alive"


# -- automatic ones ------------------------------------------------------------------------------------------------


def automatic(mounted: Mounted) -> list[Path]:
    return sorted(kept(mounted).glob("@*"))


def test_a_mount_takes_one_before_a_call_of_an_agent(kind: str, serve: Serve) -> None:
    mounted = serve(kind)
    (mounted.path / "precious").write_text("all of it\n")
    with fusebackend.connect(mounted.path) as client:
        client.execute("rm precious")
        (before,) = automatic(mounted)
        client.edit("/precious", "all", "none")
    assert not (mounted.path / "precious").exists()
    assert (before / "precious").read_text() == "all of it\n"
    assert automatic(mounted) == [before], "no second one so soon"


def test_a_mount_takes_one_while_programs_change_files(kind: str, serve: Serve) -> None:
    mounted = serve(kind)
    (mounted.path / "precious").write_text("all of it\n")
    eventually(lambda: automatic(mounted), LIMIT_S)
    (mounted.path / "precious").unlink()
    assert (automatic(mounted)[-1] / "precious").read_text() == "all of it\n"


def test_a_mount_of_python_takes_none_by_itself(tmp_path: Path) -> None:
    mounts.require()
    (tmp_path / "mnt").mkdir()
    for given, taken in ((None, 0), ("auto", 1)):
        with fusebackend.mount(InMemoryBackend(), tmp_path / "mnt", snapshots=given) as files:
            files.write("/file", "1")
            assert len(files.snapshots()) == taken


# -- several hosts -------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_snapshots_of_another_host_come_and_go(postgres_dsn: str, serve: Serve) -> None:
    """Also names that were looked up before they were there, and are cached as absent."""
    one, two = (serve(f"postgres:{postgres_dsn}?volume=v", options=MANUAL) for _ in range(2))
    (one.path / "file").write_text("before")
    for _ in range(3):
        assert not kept(two, "s").exists() and "s" not in os.listdir(kept(two))
        assert command("snapshot", "create", "s", "--mount", one.path).returncode == 0
        (two.path / "file").write_text("after")
        eventually(lambda: (kept(two, "s") / "file").read_text() == "before", LIMIT_S)
        assert (kept(one, "s") / "file").read_text() == "before" and os.listdir(kept(two)) == ["s"]
        assert command("snapshot", "delete", "s", "--yes", "--mount", two.path).returncode == 0
        eventually(lambda: not kept(one, "s").exists() and os.listdir(kept(one)) == [], LIMIT_S)
        (two.path / "file").write_text("before")
        eventually(lambda: (one.path / "file").read_text() == "before", LIMIT_S)
