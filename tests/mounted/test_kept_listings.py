"""The kernel caches listings: it reads them without a request until a change, and they are always complete."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import mounts
import pytest
from eventually import tick
from two_faces import TwoFaces, two_faces

pytestmark = pytest.mark.mounted


def filled(faces: TwoFaces, count: int, tail: str = "") -> tuple[Path, set[str]]:
    """Make a directory; return it and the names in it."""
    directory = faces.path / "directory"
    directory.mkdir()
    names = {f"{number:05}{tail}" for number in range(count)}
    for name in names:
        (directory / name).touch()
    return directory, names


def asked(faces: TwoFaces) -> int:
    """Return the number of READDIR requests so far."""
    status = json.loads(os.getxattr(faces.path, "user.fusebackend.status"))
    return int(status["counters"].get("readdir", 0))


def test_until_either_face_changes_the_directory(faces: TwoFaces) -> None:
    directory, names = filled(faces, 300)

    def make() -> None:
        (directory / "made").touch()
        names.add("made")

    def rename() -> None:
        (directory / "made").rename(directory / "renamed")
        names.symmetric_difference_update({"made", "renamed"})

    def link_from_elsewhere() -> None:
        (faces.path / "elsewhere").touch()
        os.link(faces.path / "elsewhere", directory / "link")
        names.add("link")

    def write_as_agent() -> None:
        faces.call("write", "/directory/agent", "x")
        names.add("agent")

    def move_as_agent() -> None:
        faces.call("move", "/directory/agent", "/directory/moved")
        names.symmetric_difference_update({"agent", "moved"})

    def delete_as_agent() -> None:
        faces.call("delete", "/directory/moved")
        names.remove("moved")

    for change in (make, rename, link_from_elsewhere, write_as_agent, move_as_agent, delete_as_agent):
        change()
        tick()
        for _ in range(2):  # not the first, if a notice was on its way just then
            assert set(os.listdir(directory)) == names, change.__name__
        before = asked(faces)
        for _ in range(3):
            assert set(os.listdir(directory)) == names
        assert asked(faces) == before, change.__name__


def test_a_directory_that_was_there_before_the_mount_is_small_once_it_was_seen(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'volume.db'}"
    with two_faces(tmp_path / "mnt", url) as faces:
        _, names = filled(faces, 300)
    with two_faces(tmp_path / "again", url) as faces:
        directory = faces.path / "directory"
        for _ in range(3):  # the first shows that it is small, another one is kept
            assert set(os.listdir(directory)) == names
        before = asked(faces)
        assert set(os.listdir(directory)) == names
        assert asked(faces) == before


def test_a_listing_is_read_on_from_where_it_was_left(faces: TwoFaces) -> None:
    directory, names = filled(faces, 2_000)
    assert set(os.listdir(directory)) == names
    with os.scandir(directory) as listing:  # from the kernel's cached listing …
        seen = {next(listing).name for _ in range(500)}
        faces.call("write", "/directory/new", "x")
        (directory / "00000").unlink()
        rest = [entry.name for entry in listing]  # … which is out of date by now
    assert len(rest) == len(set(rest))
    assert not seen & set(rest)
    assert seen | set(rest) >= names - {"00000"}
    assert set(os.listdir(directory)) == names - {"00000"} | {"new"}


@pytest.mark.alone
def test_what_the_kernel_had_to_give_up_is_read_on_here(faces: TwoFaces) -> None:
    directory, names = filled(faces, 2_000)
    assert set(os.listdir(directory)) == names
    with os.scandir(directory) as listing, os.scandir(directory) as other:
        seen = [next(listing).name]
        next(other)
        mounts.drop_caches(1)
        seen += [entry.name for entry in listing]
        assert sorted(seen) == sorted(names)
        assert len(list(other)) == len(names) - 1


def test_a_time_that_is_set_back_hides_nothing(faces: TwoFaces) -> None:
    directory, names = filled(faces, 3)
    for number in range(3):
        os.utime(directory, ns=(1, 1))
        for _ in range(2):
            assert set(os.listdir(directory)) == names
        faces.call("write", f"/directory/agent{number}", "x")
        names.add(f"agent{number}")


def test_a_listing_moves_the_access_time_as_often_as_without(faces: TwoFaces) -> None:
    directory, _ = filled(faces, 3)
    tick()
    os.listdir(directory)
    times = os.stat(directory)
    assert times.st_atime_ns > times.st_mtime_ns
    os.listdir(directory)
    assert os.stat(directory).st_atime_ns == times.st_atime_ns  # relatime
    for changed in (lambda: directory.chmod(0o700), lambda: os.utime(directory, ns=(1, times.st_mtime_ns))):
        tick()
        changed()
        tick()
        os.listdir(directory)
        assert os.stat(directory).st_atime_ns > os.stat(directory).st_mtime_ns
        assert os.stat(directory).st_atime_ns > times.st_atime_ns


class Listing:
    """A listing that is read in pieces, beside others."""

    def __init__(self, directory: Path, names: set[str]) -> None:
        self._entries = os.scandir(directory)
        self.must_be_seen = set(names)  # there all the time
        self.may_be_seen = set(names)  # there at some time
        self.seen: list[str] = []

    def read(self, count: int) -> bool:
        """Read up to `count` names; return False at the end."""
        for _ in range(count):
            entry = next(self._entries, None)
            if entry is None:
                return False
            self.seen.append(entry.name)
        return True

    def close(self) -> None:
        self._entries.close()

    def check(self) -> None:
        self.close()
        assert len(self.seen) == len(set(self.seen)), "a name was seen twice"
        assert self.must_be_seen <= set(self.seen) <= self.may_be_seen


@pytest.mark.alone
def test_whatever_happens_while_several_read(faces: TwoFaces) -> None:
    """Long names make each listing many replies and many pages."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    tail = "." * 180
    directory, names = filled(faces, 400, tail)
    made = 400
    listings: list[Listing] = []

    def add() -> None:
        nonlocal made
        made += 1
        name = f"{chance.randrange(100_000):05}-{made}{tail}"
        if chance.random() < 0.5:
            (directory / name).touch()
        else:
            faces.call("write", f"/directory/{name}", "x")
        names.add(name)
        for listing in listings:
            listing.may_be_seen.add(name)

    def remove() -> None:
        name = chance.choice(sorted(names))
        if chance.random() < 0.5:
            (directory / name).unlink()
        else:
            faces.call("delete", f"/directory/{name}")
        names.remove(name)
        for listing in listings:
            listing.must_be_seen.discard(name)

    def begin() -> None:
        if len(listings) < 6:
            listings.append(Listing(directory, names))

    def go_on() -> None:
        if listings:
            listing = chance.choice(listings)
            if not listing.read(chance.choice([1, 50, 150, 1000])):
                listing.check()
                listings.remove(listing)

    def give_up() -> None:
        if listings:
            listings.pop(chance.randrange(len(listings))).close()

    def compare() -> None:
        assert set(os.listdir(directory)) == names
        assert set(os.listdir(directory)) == names

    def set_back() -> None:
        os.utime(directory, ns=(10**9, 10**9))

    def forget() -> None:
        mounts.drop_caches(chance.choice([1, 2]))

    actions: list[tuple[Callable[[], None], int]] = [
        (add, 6), (remove, 6), (begin, 10), (go_on, 25), (give_up, 2), (compare, 6), (set_back, 3), (forget, 1),
    ]  # fmt: skip
    chosen = chance.choices([action for action, _ in actions], [weight for _, weight in actions], k=400)
    try:
        for action in chosen:
            action()
        for listing in listings:
            while listing.read(1000):
                pass
            listing.check()
    finally:
        for listing in listings:
            listing.close()
