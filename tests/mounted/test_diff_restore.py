"""`fusebackend diff` and `restore` on real mounts, by the snapshots that they keep."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from mounts import Mounted, Serve
from programs import command, ok, sh
from trees import snapshot as attributes_of

import fusebackend

pytestmark = pytest.mark.mounted

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
KINDS = ["memory:", "sqlite:{tmp}/volume.db"]


@pytest.fixture(params=KINDS)
def mounted(serve: Serve, request: pytest.FixtureRequest, tmp_path: Path) -> Mounted:
    (tmp_path / "live").mkdir()
    (tmp_path / "live/file").write_text("1")
    routes = {"/notes": "memory:", "/way/live": f"dir:{tmp_path}/live"}
    return serve(str(request.param).format(tmp=tmp_path), routes=routes, options=["snapshots=manual"])


def refused(*words: object, cwd: Path, status: int = 1) -> str:
    done = command(*words, cwd=cwd)
    assert (done.returncode, done.stdout) == (status, ""), done
    return done.stderr


def take(mounted: Mounted, name: str) -> Path:
    with fusebackend.connect(str(mounted.path)) as files:
        files.create_snapshot(name)
    return mounted.path / ".fusebackend/snapshots" / name


SCENE = r"""
umask 022
mkdir -p src/deep docs
printf '1\n2\n3\n' > src/text; printf 'to be moved\n' > docs/here; head -c 5000 /dev/urandom > src/deep/bytes
ln src/text src/linked; ln -s ../src/text docs/link; mkfifo docs/pipe
truncate -s 5M src/sparse; printf end >> src/sparse; setfattr -n user.tag -v value src/sparse
chmod 4755 src/deep/bytes; touch -d '2001-02-03 04:05:06.789' src/text; touch -d '2001-01-01' docs
printf note > notes/one
"""
WORK = r"""
sed -i s/2/two/ src/text; rm -rf src/deep; mv docs/here docs/there; chmod 700 docs; setfattr -x user.tag src/sparse
printf more >> src/sparse; mkdir src/deep new; printf other > src/deep/other; printf n > new/n; rm docs/link
printf changed > notes/one; printf 2 > way/live/file; rm -f docs/pipe; mkdir docs/pipe
"""


def test_what_bash_did_is_shown_and_taken_back(mounted: Mounted, tmp_path: Path) -> None:
    path = mounted.path
    sh(SCENE, path)
    kept = take(mounted, "before")
    wanted = {name: each for name, each in attributes_of(kept).items() if not name.startswith(b"way")}
    assert ok("diff", "before", cwd=path) == ""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", kept, copy], check=True)
    sh(WORK, path)

    assert ok("diff", "before", "--name-status", cwd=path).splitlines() == [
        "M\tdocs/",
        "D\tdocs/link",
        "T\tdocs/pipe/",
        "R100\tdocs/here\tdocs/there",
        "A\tnew/n",
        "M\tnotes/one",
        "D\tsrc/deep/bytes",
        "A\tsrc/deep/other",
        "M\tsrc/sparse",
        "M\tsrc/text",
    ]
    patch = command("diff", "before", cwd=path)
    assert "route '/way/live/' was not compared" in patch.stderr
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=copy, input=patch.stdout, text=True, check=True)
    for name in ("src/text", "docs/there", "src/deep/other", "notes/one", "new/n", "src/sparse"):
        assert (copy / name).read_bytes() == (path / name).read_bytes()
    assert "# docs/: mode 0755 -> 0700\n" in patch.stdout
    assert "# src/sparse: xattrs user.tag\n" in patch.stdout

    planned = ok("restore", path, "--from", "before", "-n", cwd=Path("/"))
    assert "replace    /docs/pipe\n" in planned
    assert (path / "new/n").exists()
    done = command("restore", path, "--from", "before", cwd=Path("/"))
    assert done.returncode == 0, done
    assert "route '/way/live/' is left as it is" in done.stderr
    now = {name: each for name, each in attributes_of(path).items() if not name.startswith(b"way")}
    assert now == wanted
    assert (path / "src/sparse").stat().st_blocks * 512 < 1 << 20
    assert (path / "way/live/file").read_text() == "2"
    assert ok("diff", "before", cwd=path) == ""
    assert "everything was as it is to be" in command("restore", ".", "--from", "before", cwd=path).stderr


def test_one_file_that_is_gone_with_its_directory(mounted: Mounted) -> None:
    path = mounted.path
    sh(SCENE, path)
    kept = take(mounted, "before")
    sh("rm -rf src docs", path)
    ok("restore", "src/deep/bytes", "docs/link", "--from", "before", cwd=path)
    assert attributes_of(path / "src/deep") == attributes_of(kept / "src/deep")
    assert os.listdir(path / "src") == ["deep"]
    assert os.readlink(path / "docs/link") == "../src/text"
    ok("restore", "--mount", path, "/src/text", "--from", "before", "--to", "/copy", cwd=Path("/"))
    assert (path / "copy").read_text() == "1\n2\n3\n"
    ok("restore", "src/text", "docs/here", "--from", "before", "--to", "notes/", cwd=path)
    assert sorted(os.listdir(path / "notes")) == ["here", "one", "text"]


def test_files_that_are_open_for_writing(mounted: Mounted) -> None:
    path = mounted.path
    (path / "log").write_text("old\n")
    (path / "other").write_text("old\n")
    take(mounted, "before")
    (path / "other").write_text("new\n")
    with (path / "log").open("a") as log, (path / "other").open():
        log.write("new\n")
        log.flush()
        error = refused("restore", ".", "--from", "before", cwd=path)
        assert f"Error: '/log' is open for writing by {Path('/proc/self/comm').read_text().strip()} " in error
        assert f"(process {os.getpid()})" in error
        assert "'/other'" not in error
        assert (path / "other").read_text() == "new\n"
        ok("restore", ".", "--from", "before", "--force", cwd=path)
        log.write("after\n")
    assert (path / "log").read_text() == "old\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_other_file_systems_are_left_alone(mounted: Mounted) -> None:
    path = mounted.path
    sh("mkdir -p d/there; echo old > d/there/f; echo old > d/f", path)
    take(mounted, "before")
    sh("echo new > d/f; rm -r d/there; mkdir -p d/there extra/there", path)
    for name in ("d/there", "extra/there"):
        sh(f"mount -t tmpfs none {name}; echo mine > {name}/mine", path)
    try:
        done = command("restore", ".", "--from", "before", cwd=path)
        assert (done.returncode, (path / "d/f").read_text()) == (1, "old\n")
        assert "'/d/there' was left as it is: another file system is mounted there" in done.stderr
        assert "'/extra' was left as it is: another file system is mounted at '/extra/there'" in done.stderr
        shown = ok("diff", "before", "--name-status", cwd=path).splitlines()
        assert shown == ["D\td/there/f", "A\textra/there/"], "of the tree below them"
        for name in ("d/there", "extra/there"):
            assert (path / name / "mine").read_text() == "mine\n"
    finally:
        sh("umount d/there extra/there", path)
    assert "restored" in ok("restore", ".", "--from", "before", cwd=path)
    assert (path / "d/there/f").read_text() == "old\n" and not (path / "extra").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["diff", "gone"], "Error: no snapshot 'gone'; there are: before (fusebackend snapshot list)"),
        (["diff", "before", "--", "gone"], "Error: '/gone' is neither in 'before' nor in 'main'\n"),
        (["diff", "10d"], "Error: no snapshot is as old as '10d'; the oldest is before of "),
        (["diff", "before", "--", "way/live"], "Error: '/way/live' lies in a route of which 'before' holds nothing: "),
        (["diff", "before", "--", ".fusebackend/snapshots"], "lies in the trees directory"),
        (["restore", "gone", "--from", "before"], "Error: '/gone' is not in 'before'\n"),
        (["restore", "f", "--from", "after"], "Error: no snapshot 'after'; there are: before"),
        (["restore", "f", "--from", "main"], "Error: everything is as in 'main' already"),
        (["restore", "f", "--from", "before", "--to", "no/where"], "Error: there is no directory '/no'\n"),
        (["restore", "f", "f2", "--from", "before", "--to", "f"], "Error: 'f' is not a directory\n"),
        (["restore", "f", "d/f", "--from", "before", "--to", "d"], "would both become '/d/f'"),
        (["restore", "d/f", "--from", "before"], ""),
        (["restore", "/tmp", "--from", "before"], "Error: '/tmp' lies in no mount of fusebackend"),
    ],
)  # fmt: skip
def test_errors_are_one_line(serve: Serve, tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "live").mkdir()
    mounted = serve("memory:", routes={"/way/live": f"dir:{tmp_path}/live"}, options=["snapshots=manual"])
    sh("mkdir d; touch f f2 d/f", mounted.path)
    take(mounted, "before")
    sh("rm -r d", mounted.path) if error == "" else None
    done = command(*words, cwd=mounted.path)
    assert (done.returncode, len(done.stderr.splitlines())) == (int(error != ""), int(error != "")), done
    assert error in done.stderr


def test_names_do_not_steer_a_terminal(mounted: Mounted) -> None:
    path = mounted.path
    take(mounted, "before")
    (path / "odd\x1b[2J\nname").write_text("text \x1b]0;title\x07\n")
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", buffering=0) as shown:
        done = subprocess.run(
            [sys.executable, "-m", "fusebackend", "diff"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdin=subprocess.DEVNULL, stdout=terminal, cwd=path, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        os.close(terminal)
        text = b""
        try:
            while piece := shown.read(4096):
                text += piece
        except OSError:  # EIO: the last writer has closed it
            pass
    assert done.returncode == 0
    assert b"\x1b[32m" in text
    assert b"\x1b[2J" not in text and b"\x1b]" not in text and b"\x07" not in text
    assert b'"b/odd\\033[2J\\nname"' in text


STEPS = [
    "echo two > src/text; rm -rf src/deep; mv docs/here docs/there; chmod 700 docs",
    "setfattr -x user.tag src/sparse; printf more >> src/sparse; mkdir -p src/deep new; echo o > src/deep/other",
    "mv new old; printf n > old/n; echo three > src/linked; rm docs/link docs/pipe; mkdir docs/pipe",
    "rm src/text; mv src sources; ln sources/linked again; mv docs/there sources/deep/other; touch -d 2001-01-01 again",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["memory:", "dir:{tmp}/default"])
def test_the_state_before_a_call_is_exact(serve: Serve, tmp_path: Path, kind: str) -> None:
    """Also on a route without snapshots, and after other restores and undos."""
    (tmp_path / "default").mkdir()
    mounted = serve(kind.format(tmp=tmp_path), options=["history=on", "snapshots=manual"])
    path = mounted.path
    (path / "notes").mkdir()

    shown = partial(attributes_of, path, directory_times=False)  # no record has those
    with fusebackend.connect(str(path)) as files:
        states = {}
        for number, work in enumerate([SCENE, *STEPS]):
            was = shown()
            name = files.begin_call("work", id=f"t{number}")
            sh(work, path)
            call = files.end_call(name)
            assert call is not None
            states[call] = was
        _, first, second, third, last = states
        assert ok("diff", f"{first}..{second}", "--name-status", cwd=path).splitlines() == [
            "M\tdocs/",
            "R100\tdocs/here\tdocs/there",
            "D\tsrc/deep/bytes",
            "M\tsrc/linked",
            "M\tsrc/text",
        ]
        assert ok("diff", f"{last}..", "--name-status", "--", "docs", cwd=path) == "D\tdocs/there\n"
        assert ok("diff", f"main..{last}", "--name-status", "--", "again", cwd=path) == "D\tagain\n"
        assert "link       /src/text\n" in ok("restore", ".", "--from", third, "-n", cwd=path)
        for call in (third, first, last, second):
            if call == last:
                files.undo(files.log(limit=1)[0].call)
            done = ok("restore", ".", "--from", call, cwd=path)
            assert "'fusebackend undo c" in done
            assert shown() == states[call], call
        assert ok("diff", f"{second}..", cwd=path) == ""
