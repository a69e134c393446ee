"""One mount, several trees: a change in one shows in the others at once, and files are the same in all.

`here` is the tree of the change, `there` the tree of the check: the main tree and the sandbox's, both ways round.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mounts
import pytest
from eventually import eventually
from mounts import Mounted, Serve
from programs import command, sh
from two_faces import TwoFaces, two_faces

import fusebackend
from fusebackend.linux import mount_table as table
from fusebackend.testing.posix.case import opened

TREE = ".fusebackend/private/sandbox"


class Trees:
    """A mount, and two of its trees."""

    def __init__(self, faces: TwoFaces, here: str, there: str) -> None:
        self.faces = faces
        self.here = faces.path / here
        self.there = faces.path / there


URLS = [
    pytest.param("memory:", id="memory"),
    pytest.param("sqlite:{tmp}/db", id="sqlite", marks=pytest.mark.night),
    pytest.param("dir:{tmp}/files", id="dir"),
    pytest.param("postgres:{dsn}?volume=v", id="postgres", marks=pytest.mark.night),
]
"""For trees of a mount, `sqlite:` and `postgres:` are what `memory:` is: routes with numbers and a feed."""
ROUTES = ("memories", "way/to/route", "tmp/x")


@pytest.fixture(scope="module", params=URLS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoFaces]:
    tmp = tmp_path_factory.mktemp("trees")
    (tmp / "files").mkdir()
    routes = {f"/{route}": "memory:" for route in ROUTES}
    with contextlib.ExitStack() as stack:
        dsn = ""
        if "{dsn}" in request.param:
            dsn = stack.enter_context(request.getfixturevalue("postgres").database())
        yield stack.enter_context(two_faces(tmp / "mnt", request.param.format(tmp=tmp, dsn=dsn), routes))


@pytest.fixture
def faces(served: TwoFaces) -> Iterator[TwoFaces]:
    """Yield the mount that all tests share, emptied for each."""
    yield served
    mounts.empty(served.path, *ROUTES)


@pytest.fixture(params=["main", "sandbox"])
def trees(request: pytest.FixtureRequest, faces: TwoFaces) -> Trees:
    return Trees(faces, *("", TREE) if request.param == "main" else (TREE, ""))


def looked_at(directory: Path) -> list[str]:
    """List a directory twice, so that the kernel may cache the listing."""
    os.listdir(directory)
    return sorted(os.listdir(directory))


# -- changes in one tree, seen in the other --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "d", "way", "way/to/route"])
def test_names_come_and_go(trees: Trees, place: str) -> None:
    here, there = trees.here / place, trees.there / place
    if not here.exists():
        here.mkdir()
    before = set(looked_at(there))
    for number, make in enumerate([
        lambda path: path.write_text("text"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("anywhere"),
        lambda path: os.mkfifo(path),
        lambda path: os.link(here / "0", path),
    ]):  # fmt: skip
        name = str(number)
        assert not os.path.lexists(there / name)
        make(here / name)
        assert stat.S_IFMT(os.lstat(there / name).st_mode) == stat.S_IFMT(os.lstat(here / name).st_mode)
        assert set(looked_at(there)) == before | {str(each) for each in range(number + 1)}
        assert there.stat().st_mtime_ns == here.stat().st_mtime_ns
        assert there.stat().st_nlink == here.stat().st_nlink
    (here / "0").rename(here / "new")
    assert not (there / "0").exists() and (there / "new").read_text() == "text"
    (here / "new").replace(here / "2")
    assert not (there / "new").exists() and (there / "2").read_text() == "text"
    for path in sorted(here.iterdir()):
        if path.name not in before:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            assert not os.path.lexists(there / path.name)
    assert set(looked_at(there)) == before
    assert there.stat().st_nlink == here.stat().st_nlink


def test_a_file_is_the_same(trees: Trees) -> None:
    here, there = trees.here / "file", trees.there / "file"
    here.write_text("one")
    assert there.read_text() == "one"
    assert (here.stat().st_dev, here.stat().st_ino) == (there.stat().st_dev, there.stat().st_ino)
    with there.open("rb", buffering=0) as reader:
        for number in range(10):
            here.write_text("more" * number)
            assert os.pread(reader.fileno(), 1000, 0) == b"more" * number
            assert there.stat().st_size == 4 * number
    here.chmod(0o600)
    os.utime(here, ns=(1, 2))
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert there.stat().st_mtime_ns == 2
    os.link(here, trees.here / "second")
    assert there.stat().st_nlink == 2
    here.unlink()
    assert (trees.there / "second").stat().st_nlink == 1


def test_a_directory_moves_under_who_stands_in_it(trees: Trees) -> None:
    here, there = trees.here, trees.there
    (here / "a/b").mkdir(parents=True)
    (here / "c").mkdir()
    with opened(there / "a/b", os.O_RDONLY) as inside:
        before = os.fstat(inside).st_ino
        (here / "a").rename(here / "c/moved")
        (here / "c/moved/b/new").write_text("x")
        assert os.listdir(inside) == ["new"]
        assert (there / "c/moved/b").stat().st_ino == before
        Path(f"/proc/self/fd/{inside}/by the other").write_text("y")
        assert (here / "c/moved/b/by the other").read_text() == "y"
        assert os.readlink(f"/proc/self/fd/{inside}") == str(there / "c/moved/b")
        assert not (there / "a").exists()
        (here / "c/moved/b/new").unlink()
        (here / "c/moved/b/by the other").unlink()
        (here / "c/moved/b").rmdir()
        assert os.listdir(inside) == [] and os.fstat(inside).st_nlink == 0
        with pytest.raises(OSError):
            os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=inside)


# -- between trees ---------------------------------------------------------------------------------------------------


def test_statfs_and_names_of_the_mount(trees: Trees) -> None:
    assert os.statvfs(trees.here).f_fsid == os.statvfs(trees.there).f_fsid
    assert os.statvfs(trees.here / "way").f_namemax == 255
    for path in (trees.here, trees.here / "memories", trees.faces.path / ".fusebackend"):
        assert os.getxattr(path, "user.fusebackend.socket") == os.getxattr(trees.there, "user.fusebackend.socket")
    assert os.getxattr(trees.here, "user.fusebackend.status").startswith(b"{")
    assert os.path.samefile(trees.here / "..", trees.here.parent)
    assert os.path.samefile(trees.here / "way/../memories", trees.here / "memories")


# -- the server's own names ------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_what_is_mounted_on_a_pinned_name_stays(faces: TwoFaces) -> None:
    """A mount in a process's own namespace must survive any change of the name in our mount."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    tree, script = faces.path / TREE, "mount -t tmpfs none usr && touch usr/mine && echo ready && read x && ls usr"
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    for _ in range(3):
        faces.call("write", "/usr/x", "x")
        (faces.path / "usr").rename(faces.path / "other")
        faces.call("write", "/usr", "x")
        faces.call("delete", "/usr")
        faces.call("delete", "/other")
        (faces.path / ".fusebackend/private/sandbox").stat()
        looked_at(tree)
    mounts.drop_caches(2)
    assert holder.communicate("go on\n", timeout=20)[0] == "mine\n"


def test_what_is_mounted_in_the_main_tree_is_not_in_the_other(faces: TwoFaces) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    (faces.path / "sub").mkdir()
    (faces.path / "sub/mine").touch()
    script = f"set -e; mount -t tmpfs none sub; touch sub/mounted; ls {TREE}/sub; ls sub; mkdir b\n"
    script += f"mount --rbind {TREE} b; ls b/sub"
    words = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(words, cwd=faces.path, capture_output=True, text=True, check=True)
    assert done.stdout == "mine\nmounted\nmine\n"


# -- many at once ----------------------------------------------------------------------------------------------------


def test_both_trees_at_once(faces: TwoFaces) -> None:
    """Threads change the same directories through both trees: requests must not wait for each other's directories.

    A cached name may then show a moment late, hence `eventually`.
    """
    trees = [faces.path, faces.path / TREE]
    for name in ("one", "two"):
        (faces.path / name).mkdir()

    def work(seed: int) -> None:
        rng, tree, other = random.Random(seed), trees[seed % 2], trees[1 - seed % 2]
        for number in range(10):
            path = tree / rng.choice(("one", "two")) / f"{seed}-{number}"
            twin = other / path.relative_to(tree)
            path.write_text("x")
            eventually(lambda twin=twin: twin.read_text() == "x", 30)
            moved = tree / rng.choice(("one", "two")) / f"moved-{path.name}"
            path.rename(moved)
            eventually(lambda twin=twin: not twin.exists(), 30)
            (other / moved.relative_to(tree)).unlink()
            eventually(lambda moved=moved: not moved.exists(), 30)

    with ThreadPoolExecutor(6) as threads:
        began = time.monotonic()
        assert list(threads.map(work, range(6))) == [None] * 6
        assert time.monotonic() - began < 120, "requests waited for each other"
    assert looked_at(trees[0] / "one") == looked_at(trees[1] / "one") == []


# --------------------------------------------------------------------------------------------------------------
# The trees directory, `/.fusebackend`: its files, its name, and the processes and agents that see it
# --------------------------------------------------------------------------------------------------------------

OWN = ".fusebackend"


def status_of(mounted: Mounted, name: str = OWN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((mounted.path / name / "status.json").read_bytes())
    return found


@pytest.fixture(scope="module", params=["hidden", "visible"])
def shown(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def own_mount(shown: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    point = tmp_path_factory.mktemp("own") / "mnt"
    with mounts.mounted(point, "memory:", routes={"/memories": "memory:"}, options=[f"trees={shown}"]) as mounted:
        yield mounted


@pytest.fixture
def mounted(own_mount: Mounted) -> Iterator[Mounted]:
    yield own_mount
    sh("rm -rf d file .git", own_mount.path)


# -- its files -------------------------------------------------------------------------------------------------------


def test_status_is_what_the_attribute_and_the_command_say(mounted: Mounted) -> None:
    own = mounted.path / OWN
    told = status_of(mounted)
    attribute = json.loads(os.getxattr(mounted.path, "user.fusebackend.status"))
    (printed,) = json.loads(command("status", "--json", mounted.path).stdout)
    assert told.keys() == attribute.keys() == printed.keys() - {"state"}
    moving = {"counters", "known_inodes", "open_files", "control"}
    for name in told.keys() - moving:
        assert told[name] == attribute[name] == printed[name], name
    assert told["mountpoint"] == str(mounted.path) and told["pid"] == mounted.pid and told["trees"] == f"/{OWN}"
    assert [route["prefix"] for route in told["routes"]] == ["/", "/memories/"]
    assert (own / "version").read_text() == f"{fusebackend.__version__}\n"
    text = (own / "status.json").read_text()
    assert text.startswith('{\n  "mountpoint": ') and text.endswith("}\n")


# -- its name --------------------------------------------------------------------------------------------------------


def test_listings_of_the_root(mounted: Mounted, shown: str, tmp_path: Path) -> None:
    (mounted.path / "d").mkdir()
    (mounted.path / "d/file").write_text("x\n")
    names = {"d", "memories"} | ({OWN} if shown == "visible" else set())
    assert set(os.listdir(mounted.path)) == set(os.listdir(mounted.path)) == names
    found = set(sh("find . -mindepth 1", mounted.path).split())
    below = {f"./{OWN}", f"./{OWN}/status.json", f"./{OWN}/version"} if shown == "visible" else set()
    assert found == {"./d", "./d/file", "./memories"} | below, "and no private tree, where all is found again"
    sh(f"cp -a {mounted.path} {tmp_path}/copy", tmp_path)
    assert (tmp_path / "copy/d/file").read_text() == "x\n"
    assert (tmp_path / "copy" / OWN).exists() == (shown == "visible")
    assert os.statvfs(mounted.path / OWN).f_fsid == os.statvfs(mounted.path).f_fsid
    assert str(mounted.path) in sh(f"df {OWN}", mounted.path)
    git = "git -c user.name=x -c user.email=x@x -c safe.directory='*'"
    sh(f"{git} init -q; {git} add d; {git} commit -qm one", mounted.path)
    untracked = sh(f"{git} status --porcelain", mounted.path)
    assert untracked == (f"?? {OWN}/\n" if shown == "visible" else "")


def test_a_volume_that_has_the_name_is_refused(serve: Serve, tmp_path: Path) -> None:
    url = f"dir:{tmp_path}/volume"
    (tmp_path / "volume" / OWN).mkdir(parents=True)
    point = tmp_path / "point"
    point.mkdir()
    for words in ([], ["--foreground"]):
        done = command("mount", point, "--default", url, *words)
        assert done.returncode == 1
        *_, line = done.stderr.splitlines()
        assert line == (
            f"Error: {url} has a file '/{OWN}', which is the mount's own directory: rename that one, which a mount "
            "with '-o trees=off' shows, or mount with '-o trees_name=NAME'"
        )
        assert "Traceback" not in done.stderr and table.mount_at(str(point)) is None
    mounted = serve(url, options=["trees_name=.other"])
    assert status_of(mounted, ".other")["trees"] == "/.other"
    mounted.stop()
    mounted = serve(url, options=["trees=off"])
    (mounted.path / OWN).rename(mounted.path / "renamed")
    mounted.stop()
    assert status_of(serve(url))["trees"] == f"/{OWN}"


def test_a_default_that_runs_commands_is_asked_when_it_has_started(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "root" / OWN).mkdir(parents=True)
    point = tmp_path / "point"
    point.mkdir()
    url = f"python:guests:hosted?directory={tmp_path}"
    done = command("mount", point, "--default", url)
    assert done.returncode == 1 and done.stderr.startswith(f"Error: {url} has a file '/{OWN}', which is"), done.stderr
    assert table.mount_at(str(point)) is None
    (tmp_path / "root" / OWN).rmdir()
    shutil.rmtree(tmp_path / "tools")
    assert status_of(serve(url))["trees"] == f"/{OWN}"


def test_a_route_that_has_the_name_is_refused(serve: Serve, tmp_path: Path) -> None:
    done = command("mount", tmp_path, "--default", "memory:", "--route", f"/{OWN}/x=memory:")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: route '/{OWN}/x/' begins with '/{OWN}', which is the mount's own directory: attach it elsewhere, or "
        "mount with '-o trees_name=NAME'\n"
    )
    mounted = serve("memory:", routes={f"/{OWN}/x": "memory:"}, options=["trees=off"])
    (mounted.path / OWN / "x/file").write_text("x")
    assert os.listdir(mounted.path / OWN) == ["x"]


def test_a_mount_of_a_mount_is_not_refused(mounted: Mounted, serve: Serve) -> None:
    (mounted.path / "file").write_text("x")
    above = serve(f"dir:{mounted.path}")
    assert (above.path / "file").read_text() == "x"
    assert status_of(above)["pid"] == above.pid and status_of(mounted)["pid"] == mounted.pid
    above.stop()


# -- who sees it -----------------------------------------------------------------------------------------------------


def test_other_users_read_what_the_attribute_says(serve: Serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    server = serve("memory:", options=["allow_other"])
    script = (
        f"cat {OWN}/status.json >/dev/null && ls {OWN} && ! ls {OWN}/private 2>/dev/null && ! ls {OWN}/log 2>/dev/null"
        f" && ! cd {OWN}/private/sandbox 2>/dev/null && ! touch {OWN}/x 2>/dev/null && echo read"
    )
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    done = subprocess.run(words, cwd=server.path, capture_output=True, text=True, check=False)
    assert done.stdout == "branches\nlog\nsnapshots\nstatus.json\nversion\nread\n", done.stderr


def test_agents_reach_it_by_name(mounted: Mounted, shown: str, tmp_path: Path) -> None:
    (mounted.path / "file").write_text("mountpoint")
    with fusebackend.connect(mounted.path) as client:
        listed = [entry["path"] for entry in client.ls("/").entries or ()]
        assert listed == ([f"/{OWN}/"] if shown == "visible" else []) + ["/file", "/memories/"]
        own = [entry["path"] for entry in client.ls(f"/{OWN}").entries or ()]
        assert own == [f"/{OWN}/log/", f"/{OWN}/snapshots/", f"/{OWN}/status.json", f"/{OWN}/version"]
        assert str(client.read(f"/{OWN}/version")).split()[-1] == fusebackend.__version__
        data = client.read(f"/{OWN}/status.json").file_data
        assert data is not None
        everywhere = [match["path"] for match in client.grep('"mountpoint"').matches or ()]
        assert everywhere == ([f"/{OWN}/status.json"] if shown == "visible" else [])
        assert [match["path"] for match in client.grep("mountpoint", f"/{OWN}").matches or ()] == [
            f"/{OWN}/status.json"
        ]
        for found in (client.glob("*.json", f"/{OWN}"), client.glob(f"/{OWN}/*.json")):
            assert [match["path"] for match in found.matches or ()] == [f"/{OWN}/status.json"]
        mixed = client.download_files(["/file", f"/{OWN}/version", f"/{OWN}/none"])
        assert [one.content for one in mixed] == [b"mountpoint", f"{fusebackend.__version__}\n".encode(), None]
        told = client.stat(f"/{OWN}/status.json")
        assert (told.type, told.mode, told.route) == ("file", 0o444, f"/{OWN}/")
        assert client.stat(f"/{OWN}").type == "directory"
        for record in (
            client.write(f"/{OWN}/new", "x"),
            client.write(f"/{OWN}", "x"),
            client.edit(f"/{OWN}/version", "0", "1"),
            client.delete(f"/{OWN}/version"),
            client.delete(f"/{OWN}"),
            client.move("/file", f"/{OWN}/file"),
            client.move(f"/{OWN}/version", "/version"),
            client.move(f"/{OWN}", "/other"),
            *client.upload_files([(f"/{OWN}/new", b"x"), (f"/{OWN}", b"x")]),
        ):
            assert record.error is not None, record
            assert "\n" not in record.error
        assert client.read("/file").error is None
        names = sorted(entry["path"] for entry in client.ls("/memories").entries or ())
        assert names == []
    assert json.loads(command("read", mounted.path / OWN / "status.json").stdout)["pid"] == mounted.pid
    assert command("ls", mounted.path / OWN).stdout.split() == ["log/", "snapshots/", "status.json", "version"]
    assert set(os.listdir(mounted.path)) - {OWN} == {"file", "memories"}
