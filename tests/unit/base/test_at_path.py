"""A path is not a file: what is opened anew, what stays, and what says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from replacing import REPLACED, behind_a_link

from fusebackend.base.at_path import OPENINGS, AtPath, Followed, state_at
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import fails


class Opened:
    """A file that was read when it was opened, and its descriptor, which keeps the inode number."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.text = os.pread(self.fd, 100, 0).decode()
        if self.text == "unusable":
            os.close(self.fd)
            raise ValueError("no file of ours")

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_text("first")
    return found


@pytest.fixture
def new(tmp_path: Path) -> Path:
    found = tmp_path / "new"
    found.write_text("second one")
    return found


@pytest.fixture
def followed(path: Path) -> Iterator[Followed[Opened]]:
    made = Followed(str(path), lambda: Opened(path), Opened.close)
    yield made
    made.close()


def test_what_takes_the_place_is_opened(tmp_path: Path) -> None:
    for case in each(REPLACED):
        with case as replace:
            path, new = tmp_path / replace.__name__, tmp_path / f"{replace.__name__}.new"
            path.write_text("first")
            new.write_text("second one")
            behind_a_link(path)
            followed = Followed(str(path), lambda path=path: Opened(path), Opened.close)
            assert (followed.get().text, followed.openings, followed.trouble) == ("first", 1, None)
            replace(path, new)
            assert followed.get().text == "second one"
            assert (followed.get().text, followed.openings, followed.trouble) == ("second one", 2, None)
            followed.close()


def test_what_is_removed_stays_open_and_says_so(
    followed: Followed[Opened], path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.rename(tmp_path / "aside")
    assert followed.get().text == "first"
    trouble = followed.trouble
    assert trouble is not None and f"its file {path} was moved or deleted" in trouble[1]
    assert followed.trouble == trouble, "the time is that of the first look"
    with fails(errno.EIO, match="was moved or deleted"):
        followed.at.require()
    assert caplog.text.count("was moved or deleted") == 1
    (tmp_path / "aside").rename(path)
    followed.at.require()
    assert (followed.trouble, followed.openings) == (None, 1)


def test_what_cant_be_opened_is_refused_until_it_can(
    followed: Followed[Opened], path: Path, new: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.rename(path.with_suffix(".first"))
    path.write_text("unusable")
    for _ in range(3):
        with fails(errno.EIO, match="was replaced, and can't be used: no file of ours"):
            followed.get()
    assert followed.trouble is not None and "no file of ours" in followed.trouble[1]
    assert caplog.text.count("no file of ours") == 1
    path.unlink()
    with pytest.raises(OSError, match="no file of ours"):
        followed.get()
    path.with_suffix(".first").rename(path)
    assert (followed.get().text, followed.trouble) == ("first", None)


def test_what_something_else_has_open_as_well_is_not_left(path: Path, new: Path) -> None:
    followed = Followed(str(path), lambda: Opened(path), Opened.close, follows=False)
    os.replace(new, path)
    assert (followed.get().text, followed.openings) == ("first", 1)
    assert followed.trouble is not None
    followed.close()


def test_what_is_replaced_while_it_is_opened_is_opened_again(path: Path, new: Path) -> None:
    def opened() -> Opened:
        found = Opened(path)
        if new.exists():
            os.replace(new, path)
        return found

    followed = Followed(str(path), opened, Opened.close)
    assert followed.get().text == "second one"
    followed.close()
    closed = []

    def never_the_same() -> int:
        new.write_text("x")
        os.replace(new, path)
        return len(closed)

    with pytest.raises(OSError, match="another file each time") as caught:
        Followed(str(path), never_the_same, closed.append)
    assert (caught.value.errno, len(closed)) == (errno.EBUSY, OPENINGS)


def test_own_writes_open_nothing_anew(path: Path) -> None:
    followed = Followed(str(path), lambda: Opened(path), Opened.close)
    path.write_text("written here")
    followed.wrote()
    assert (followed.get().text, followed.openings) == ("first", 1)
    path.write_text("written elsewhere")
    assert (followed.get().text, followed.openings) == ("written elsewhere", 2)
    followed.close()


def test_a_path_that_was_relative_stays_what_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_at(str(path))
    assert state is not None
    monkeypatch.chdir(tmp_path)
    at = AtPath(path.name, state.key)
    monkeypatch.chdir("/")
    assert at.trouble is None
