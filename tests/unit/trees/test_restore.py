"""`restore.py`: files of a snapshot, of a branch and of main put back, and a restore that is killed at each change."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from failing import CHANGES
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import Step, at, chmod, content, link, make, mkdir, place, remove, shown, symlink, walk, write
from profiles import amount, examples
from random_trees import Fifo, Link, Tree, trees
from whole_tree import whole_tree

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.protocol import AttrChanges, Caller, RestoreResult, Volume
from fusebackend.trees.branch_volume import BranchRoute
from fusebackend.trees.branches import Branches
from fusebackend.trees.merge.run import STAGING, Journal, MainTree
from fusebackend.trees.refs import MAIN_REF, Ref
from fusebackend.trees.restore import JOURNAL, Restores
from fusebackend.trees.snapshots import Snapshots
from fusebackend.trees.states import States
from fusebackend.volumes import placing
from fusebackend.volumes.contents import opened

ME = Caller(os.geteuid(), os.getegid())


class AnyBranch(InMemoryVolume):
    """A volume in place of a branch that has no file of the mount."""

    routes = (BranchRoute(ROOT, None, 0),)

    def key_of(self, prefix: AgentPath, node: int) -> None:
        return None


class Source(Branches):
    """A branch `before` that is any volume."""

    def __init__(self, directory: Path, volume: Volume | None) -> None:
        self._directory = str(directory)
        self._volume = volume

    def volume(self, name: str) -> Any:
        return self._volume


class Scene:
    """Volumes, and a state `before` of them: a snapshot of those that keep any, or another volume.

    Args:
        directory: of the journal.
        volumes: prefix → volume.
        before: the state; None for a snapshot, which `take` makes.
        covered: paths at which other file systems are mounted.
    """

    def __init__(
        self, directory: Path, volumes: dict[str, Volume], before: Volume | None = None, covered: Collection[bytes] = ()
    ) -> None:
        self.volumes = {AgentPath(prefix): volume for prefix, volume in volumes.items()}
        self.main = volumes["/"]
        self.ref = Ref("before", 1, is_branch=before is not None)
        self.journal = directory / f"{JOURNAL}.merge"
        self._snapshots = Snapshots(self.volumes)
        source = Source(directory, before)
        states = States(self.volumes, self._snapshots, source)
        self._restores = Restores(MainTree(source, self.volumes, tuple, None, lambda: covered), states, len)

    def take(self) -> None:
        self._snapshots.create("before")

    def restore(self, *paths: str, to: list[str] | None = None, ref: Ref | None = None) -> RestoreResult:
        return self._restores.restore(paths or ("/",), ref or self.ref, to, dry_run=False, force=False)

    def restored(self, *paths: str, to: list[str] | None = None) -> list[str]:
        """Restore without anything to tell of, and again without anything to do. Returns the changes."""
        result = self.restore(*paths, to=to)
        assert (result.conflicts, result.skipped, result.partly) == ([], [], [])
        again = self.restore(*paths, to=to)
        assert again.changes == [], again
        assert not self.journal.exists()
        assert not any(path.startswith(STAGING) for path in shown(self.main))
        return [f"{each.change} {each.path}" for each in result.changes]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, {"/": InMemoryVolume()})


def node(volume: Volume, path: bytes) -> int:
    return at(volume, path).node


def data(volume: Volume, path: bytes) -> bytes:
    return content(volume, at(volume, path))


def colour(volume: Volume, path: bytes, value: bytes) -> None:
    volume.setxattr(node(volume, path), b"user.colour", value)


def touch(volume: Volume, path: bytes, mtime_ns: int) -> None:
    volume.setattr(node(volume, path), AttrChanges(mtime_ns=mtime_ns))


# -- a state comes back ------------------------------------------------------------------------------------------


def fill(volume: Volume, tree: Tree, mtime_ns: int, above: bytes = b"") -> None:
    for name, each in tree.items():
        path = above + name
        if isinstance(each, dict):
            mkdir(volume, path)
            fill(volume, each, mtime_ns, path + b"/")
        elif isinstance(each, Link):
            symlink(volume, path, each.target)
        elif isinstance(each, Fifo):
            volume.mknod(*place(volume, path), stat.S_IFIFO | each.mode, 0, ME)
        else:
            write(volume, path, each.data, each.mode)
        touch(volume, path, mtime_ns)


def link_some(volume: Volume, pairs: list[tuple[int, int]]) -> None:
    files = sorted(path for path, attr in walk(volume) if stat.S_ISREG(attr.mode))
    for one, other in pairs:
        if one < len(files) and other < len(files) and one != other:
            remove(volume, files[other])
            link(volume, files[one], files[other])


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=2)


@settings(max_examples=examples(60), deadline=None)
@given(before=trees(special=True), after=trees(special=True), pairs=PAIRS, their_pairs=PAIRS)
def test_a_tree_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree, pairs: Any, their_pairs: Any
) -> None:
    scene = Scene(tmp_path_factory.getbasetemp(), {"/": InMemoryVolume()})
    fill(scene.main, before, 1_000)
    link_some(scene.main, pairs)
    scene.take()
    wanted = whole_tree(scene.main, directory_times=True)
    for path in [path for path in shown(scene.main) if b"/" not in path]:
        remove(scene.main, path)
    fill(scene.main, after, 2_000)
    link_some(scene.main, their_pairs)
    scene.restored()
    assert whole_tree(scene.main, directory_times=True) == wanted


def test_attributes_holes_links_and_special_files(tmp_path: Path) -> None:
    for volume in (InMemoryVolume(), SqliteVolume(tmp_path / "volume.db")):
        scene = Scene(tmp_path, {"/": volume})
        write(volume, b"sparse", b"", 0o4750)
        with opened(volume, node(volume, b"sparse"), os.O_WRONLY) as handle:
            volume.setattr(handle, AttrChanges(size=4 << 20))
            volume.write(handle, 2 << 20, b"middle")
        volume.setxattr(node(volume, b"sparse"), b"user.colour", b"blue")
        chmod(volume, b"sparse", 0o4750)
        link(volume, b"sparse", b"linked")
        mkdir(volume, b"dir", 0o1770)
        volume.setxattr(node(volume, b"dir"), b"user.kind", b"box")
        symlink(volume, b"dir/sym", b"../sparse")
        kinds = {b"pipe": stat.S_IFIFO, b"socket": stat.S_IFSOCK, b"null": stat.S_IFCHR, b"disk": stat.S_IFBLK}
        for number, (name, kind) in enumerate(kinds.items()):
            device = os.makedev(number, 3) if name in (b"null", b"disk") else 0
            volume.mknod(*place(volume, b"dir/" + name), kind | 0o620, device, ME)
        volume.setattr(node(volume, b"linked"), AttrChanges(uid=1, gid=2, mode=0o4750)) if not os.geteuid() else None
        for path in (b"sparse", b"dir/sym", b"dir/null", b"dir"):
            touch(volume, path, 11)
        scene.take()
        wanted = whole_tree(volume, directory_times=True)
        remove(volume, b"dir")
        remove(volume, b"linked")
        write(volume, b"sparse", b"other")
        volume.removexattr(node(volume, b"sparse"), b"user.colour")
        mkdir(volume, b"linked")
        write(volume, b"linked/in", b"the way")
        scene.restored()
        assert whole_tree(volume, directory_times=True) == wanted
        assert at(volume, b"sparse").blocks * 512 < 1 << 18, "holes are holes again"
        assert at(volume, b"linked").nlink == 2
    volume.close()


class Story(NamedTuple):
    """A state, what becomes of it, and restores with their changes. The last one makes it what it was, unless `names`
    says which files there are then."""

    before: list[Step]
    since: list[Step]
    restores: list[tuple[list[str], list[str] | None]]
    same: list[bytes] = []
    """Files that stay the ones they were before the restores."""

    names: set[bytes] = set()


STORIES = {
    "links of a file that is made again are links again": Story(
        [(mkdir, b"a"), (mkdir, b"b"), (write, b"a/one", b"same"), (link, b"a/one", b"b/other")],
        # what it was, and yet no link of the file that comes back
        [(remove, b"a"), (remove, b"b/other"), (write, b"b/other", b"same")],
        [([], None)],
    ),
    "only what differs is changed": Story(
        [(write, name, name) for name in (b"same", b"text", b"mode", b"gone", b"colour")],
        [(write, b"text", b"other"), (chmod, b"mode", 0o600), (remove, b"gone"), (write, b"extra", b"new"),
         (colour, b"colour", b"red")],
        [([], ["attributes /", "attributes /colour", "remove /extra", "create /gone", "attributes /mode",
               "replace /text"])],
        same=[b"same", b"mode", b"colour"],
    ),
    # Names that were one file are one again, and names that were not are parted. Nothing else is made anew.
    "hard links": Story(
        [
            *((write, name, b"the same") for name in (b"a", b"b", b"alone", b"d")),
            *((touch, name, 5) for name in (b"a", b"b", b"alone", b"d")),
            (link, b"a", b"linked"), (mkdir, b"elsewhere"), (link, b"d", b"elsewhere/d"),
        ],
        [(remove, b"b"), (link, b"a", b"b"), (remove, b"linked"), (remove, b"elsewhere/d"),
         (link, b"alone", b"elsewhere/alone")],
        # its other name is not asked for; and a link from elsewhere stays with the old file
        [(["/d"], []), (["/alone"], ["replace /alone"]), ([], None)],
        same=[b"d", b"elsewhere"],
    ),
    "a path alone with the directories above it": Story(
        [(mkdir, b"a", 0o711), (mkdir, b"a/b"), (write, b"a/b/f", b"1"), (write, b"a/b/g", b"2"), (touch, b"a/b", 7)],
        [(remove, b"a")],
        [(["/a/b/f", "/a/b/f"], ["create /a", "create /a/b", "create /a/b/f"])],
        names={b"/", b"/a", b"/a/b", b"/a/b/f"},
    ),
}  # fmt: skip


@for_each("name", STORIES)
def test_what_comes_back(name: str, tmp_path: Path) -> None:
    story, scene = STORIES[name], Scene(tmp_path, {"/": InMemoryVolume()})
    make(scene.main, story.before)
    scene.take()
    wanted = whole_tree(scene.main, directory_times=True)
    make(scene.main, story.since)
    nodes = {path: node(scene.main, path) for path in story.same}
    for paths, changes in story.restores:
        made = scene.restored(*paths)
        assert changes in (None, made)
    assert {path: node(scene.main, path) for path in nodes} == nodes
    found = whole_tree(scene.main, directory_times=True)
    if story.names:
        assert found.keys() == story.names
        assert all(found[path] == wanted[path] for path in story.names - {b"/"})
    else:
        assert found == wanted


def test_to_another_path(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    scene = Scene(tmp_path, {"/": InMemoryVolume(), "/plain": DirectoryVolume(tmp_path / "plain")})
    main = scene.main
    mkdir(main, b"d")
    write(main, b"d/f", b"1")
    scene.take()
    remove(main, b"d/f")
    assert scene.restored("/d", to=["/plain/copy"]) == ["create /plain/copy", "create /plain/copy/f"]
    assert (tmp_path / "plain/copy/f").read_bytes() == b"1"
    assert scene.restored("/d/f", "/d", to=["/d/copy", "/whole"]) == [
        "create /d/copy", "create /whole", "create /whole/f",
    ]  # fmt: skip
    assert data(main, b"d/copy") == b"1"
    for paths, to, error in (
        (["/d"], ["/not/there"], "there is no directory '/not'"),
        (["/d", "/d/f"], ["/x", "/x"], "'/d' and '/d/f' would both become '/x'; give each another path"),
        (["/d", "/d/f"], ["/x", "/x/y"], "'/x/y' and '/x' lie in each other; give a path beside it"),
    ):
        with pytest.raises((OSError, ValueError)) as refused:
            scene.restore(*paths, to=to)
        assert error in str(refused.value)
    for source, final in (("/whole", "/whole/in"), ("/whole/f", "/whole")):
        with pytest.raises(ValueError, match="lie in each other"):
            scene.restore(source, to=[final], ref=MAIN_REF)
    scene.restore("/whole/f", to=["/live"], ref=MAIN_REF)
    assert data(main, b"live") == b"1"


def test_errors_change_nothing(scene: Scene) -> None:
    main = scene.main
    mkdir(main, b"d")
    write(main, b"d/f", b"1")
    scene.take()
    remove(main, b"d")
    write(main, b"d", b"a file")
    for path, number, error in (
        ("/nothing", errno.ENOENT, "'/nothing' is not in 'before'"),
        ("/d/f/g", errno.ENOENT, "'/d/f/g' is not in 'before'"),
        ("/d/f", errno.ENOTDIR, "'/d' is no directory, so nothing can be put there"),
    ):
        with pytest.raises(OSError) as refused:
            scene.restore(path)
        assert (refused.value.errno, refused.value.strerror) == (number, error)
    assert data(main, b"d") == b"a file"


def test_a_symbolic_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    main = DirectoryVolume(tmp_path / "main")
    before = AnyBranch()
    mkdir(before, b"d")
    write(before, b"d/f", b"1")
    symlink(before, b"link", b"d")
    scene = Scene(tmp_path, {"/": main}, before)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "main/d").symlink_to(outside)
    for path, to in (("/d/f", None), ("/d/f", ["/d/g"])):
        with pytest.raises(NotADirectoryError, match="'/d' is no directory"):
            scene.restore(path, to=to)
    with pytest.raises(FileNotFoundError, match="'/link/f' is not in 'before'"):
        scene.restore("/link/f")
    assert scene.restored("/d") == ["replace /d", "create /d/f"]
    assert (tmp_path / "main/d/f").read_bytes() == b"1" and not (tmp_path / "main/d").is_symlink()
    assert os.listdir(outside) == []


# -- what is left alone ------------------------------------------------------------------------------------------


def test_paths_at_which_something_is_mounted(tmp_path: Path) -> None:
    covered = {b"d/there", b"extra/deep/there", b"was file/there", b"file"}
    scene = Scene(tmp_path, {"/": InMemoryVolume()}, covered=covered)
    main = scene.main
    mkdir(main, b"d")
    mkdir(main, b"d/there")
    for path in (b"d/there/f", b"d/f", b"was file", b"file"):
        write(main, path, b"old")
    scene.take()
    for path in (b"d/there/f", b"d/f", b"file"):
        write(main, path, b"new")
    remove(main, b"was file")
    for path in (b"was file", b"was file/there", b"extra", b"extra/deep", b"extra/deep/there"):
        mkdir(main, path)
    foreign = "another file system is mounted"
    told = {each.path: each.reason for each in scene.restore().skipped}
    assert told == {
        "/d/there": f"{foreign} there",
        "/file": f"{foreign} there",
        "/extra": f"{foreign} at '/extra/deep/there'",
        "/was file": f"{foreign} at '/was file/there'",
    }
    assert (data(main, b"d/f"), data(main, b"d/there/f"), data(main, b"file")) == (b"old", b"new", b"new")
    assert at(main, b"extra/deep/there").is_dir and at(main, b"was file/there").is_dir
    assert [each.path for each in scene.restore("/d/there/f", "/d/f").skipped] == ["/d/there/f"]
    assert [each.path for each in scene.restore("/d/f", to=["/d/there/new"]).skipped] == ["/d/there/new"]
    assert data(main, b"d/there/f") == b"new"


def test_routes_without_the_state_and_read_only_ones(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    routes = {"/": InMemoryVolume(), "/plain": DirectoryVolume(tmp_path / "plain"), "/a/notes": InMemoryVolume()}
    scene = Scene(tmp_path, {**routes})
    main, notes = routes["/"], routes["/a/notes"]
    write(notes, b"note", b"old")
    write(main, b"f", b"old")
    scene.take()
    (tmp_path / "plain/live").write_text("live")
    write(notes, b"note", b"new")
    mkdir(main, b"a")
    write(main, b"a/extra", b"new")
    scene.restore()
    assert data(notes, b"note") == b"old"
    assert (tmp_path / "plain/live").read_text() == "live"
    with pytest.raises(FileNotFoundError, match="'/plain/live' is not in 'before'"):
        scene.restore("/plain/live")


def test_names_of_the_server_are_in_no_state(scene: Scene) -> None:
    """What a merge that was killed has parked is neither removed nor, by a snapshot of that moment, brought back."""
    main = scene.main
    mkdir(main, b"d")
    mkdir(main, STAGING + b"one")
    write(main, STAGING + b"one/parked", b"in the snapshot")
    write(main, b"d/" + placing.TEMPORARY + b"1", b"half")
    scene.take()
    remove(main, STAGING + b"one")
    remove(main, b"d/" + placing.TEMPORARY + b"1")
    mkdir(main, STAGING + b"two")
    write(main, STAGING + b"two/parked", b"of a branch")
    assert {each.change for each in scene.restore().changes} == {"attributes"}
    assert shown(main).keys() == {b"d", STAGING + b"two", STAGING + b"two/parked"}


# -- killed at each change ---------------------------------------------------------------------------------------

KILLED = 9
EVERY = amount("FUSEBACKEND_RESTORE_KILLS_EVERY", day=4, night=1)


def old(volume: Volume) -> None:
    """The state that comes back."""
    write(volume, b"text", b"old " * 1000)
    volume.setxattr(node(volume, b"text"), b"user.a", b"b")
    for path in (b"gone", b"gone/deep", b"was a dir", b"was a dir/sub"):
        mkdir(volume, path)
    for path in (b"gone/deep/f", b"was a file", b"was a dir/x", b"was a dir/sub/y", b"one"):
        write(volume, path, b"old " + path)
    symlink(volume, b"link", b"text")
    volume.mknod(*place(volume, b"pipe"), stat.S_IFIFO | 0o640, 0, ME)
    link(volume, b"one", b"was a dir/two")
    for path in [path for path, _ in walk(volume)]:
        touch(volume, path, 1_000)


def new(volume: Volume) -> None:
    """The state that goes."""
    write(volume, b"text", b"new " * 900, 0o600)
    for path in (b"was a file", b"extra"):
        mkdir(volume, path)
    for path in (b"was a file/z", b"was a dir", b"extra/e", b"one"):
        write(volume, path, b"new " + path)


def killing(scene: Scene, count: int) -> None:
    """Have this process end before its change number `count`, of the volume or of the journal."""
    left = [count]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os._exit(KILLED)
            return call(*arguments, **named)

        return counting

    for name in CHANGES:
        if hasattr(scene.main, name):
            setattr(scene.main, name, counted(getattr(scene.main, name)))
    for name in ("begin", "note", "end"):
        setattr(Journal, name, counted(getattr(Journal, name)))


def run_until(count: int, make: Callable[[], Scene]) -> int:
    """Restore in a process that is killed before its change number `count`; return its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        scene = make()
        killing(scene, count)
        scene.restore()
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize("kind", ["sqlite", "dir"])
def test_killed_at_each_change(tmp_path: Path, kind: str) -> None:
    """A route that keeps snapshots has all of it or nothing; others have each file as it was, or as it will be. The
    same restore does the rest, and removes what was left over."""
    state = AnyBranch()
    old(state)

    def make(directory: Path) -> Scene:
        if kind == "dir":
            return Scene(directory, {"/": DirectoryVolume(directory / "main")}, state)
        return Scene(directory, {"/": SqliteVolume(directory / "main")})

    first = tmp_path / "first"
    first.mkdir()
    (first / "main").mkdir() if kind == "dir" else None
    scene = make(first)
    if kind == "sqlite":
        old(scene.main)
        scene.take()
        for name in [path for path in shown(scene.main) if b"/" not in path]:
            remove(scene.main, name)
    new(scene.main)
    before, after = shown(scene.main), shown(state)
    wanted = whole_tree(state, directory_times=True)
    scene.main.close()
    status, left_over = KILLED, 0
    for count in itertools.count(1, EVERY):
        directory = tmp_path / str(count)
        subprocess.run(["cp", "-a", first, directory], check=True)
        status = run_until(count, lambda directory=directory: make(directory))  # type: ignore[misc]
        assert status in (KILLED, 0), count
        scene = make(directory)
        found = shown(scene.main)
        left_over += any(path.startswith(STAGING) for path in found)
        now = {path: each for path, each in found.items() if not path.startswith(STAGING)}
        if kind == "sqlite":
            assert now in (before, after), count
        for path, each in now.items():
            sides = [(side[path].type, side[path].data) for side in (before, after) if path in side]
            assert (each.type, each.data) in sides, (count, path)
        is_made = all(path in now and now[path].data == each.data for path, each in after.items())
        assert is_made or b"extra/e" in now, "removed before all else was in place"
        scene.restored()
        there = whole_tree(scene.main, directory_times=True)
        assert {**there, b"/": wanted[b"/"]} == wanted, count
        scene.main.close()
        shutil.rmtree(directory)
        if status == 0:
            break
    assert count > 25 and left_over > count // EVERY // 3, "a third of the kills and more left something to remove"
