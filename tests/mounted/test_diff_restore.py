"""`fusebackend diff` and `restore` on real mounts, by the snapshots that they keep."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from mounts import Mounted, Serve
from programs import command, ok, on_a_terminal, sh
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


def test_names_do_not_steer_a_terminal(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mounted.path
    take(mounted, "before")
    (path / "odd\x1b[2J\nname").write_text("text \x1b]0;title\x07\n")
    monkeypatch.delenv("NO_COLOR", raising=False)
    status, shown = on_a_terminal("diff", cwd=path)
    assert status == 0
    assert "\x1b[32m" in shown
    assert "\x1b[2J" not in shown and "\x1b]" not in shown and "\x07" not in shown
    assert '"b/odd\\033[2J\\nname"' in shown
