"""The base of the POSIX cases: a fresh directory, declared limits, and a few calls that Python lacks.

A case is a method with the argument `d`: an empty directory of its own, removed afterwards; `file` is a file in it.
`needs(...)` names the features and limits without which a case is skipped. `refused(errno, call, ...)`, and the block
`fails(errno, ...)`, expect one of those errnos and no other. A case for many values loops over them with
`fusebackend.testing.each`, in `fresh(d)` for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import multiprocessing
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from fusebackend.base.context import closing_fd
from fusebackend.linux.bind_mount import called
from fusebackend.protocol import Features
from fusebackend.testing.each import each

P = ParamSpec("P")

NOBODY = 65534
"""The other user (and group) of cases that need one; the kernel's overflow uid, which owns nothing."""

AT_FDCWD = -100

_NUMBERS = itertools.count(1)

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Limits:
    """Differences that POSIX allows between file systems; the defaults are those of a native volume's mount."""

    huge_files: bool = True
    """A sparse file may be 2^50 bytes long (ext4 ends at 2^44)."""
    sparse: bool = True
    """A hole in a file takes no room."""
    xattr_value_bytes: int = 65536
    """The longest value of one extended attribute; the kernel's own limit is 65536 (ext4: about 4,000)."""
    direct_any_size: bool = True
    """O_DIRECT takes any offset, size and address, as FUSE does; disks want whole sectors."""
    other_users: bool = True
    """Other users have access (a mount with `allow_other`)."""
    wide_times: bool = True
    """Times from 1901 to 2262 (what 64 bits of nanoseconds hold) are kept to the nanosecond."""
    byte_names: bool = True
    """Names may be any bytes; otherwise only UTF-8, and the rest is EILSEQ."""
    noatime: bool = True
    """O_NOATIME is heeded."""
    many_entries: int = 3000
    """Entries of a large directory in the cases that change it while they read it."""


MAKERS: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "file": ((), lambda path: Path(path).touch()),
    "directory": ((), lambda path: os.makedirs(f"{path}/below")),
    "symlink": (("symlinks",), lambda path: os.symlink(".", path)),
    "fifo": (("special_files",), os.mkfifo),
}
"""What a class must declare, and the maker of a file at a path."""


class Case:
    """The base class of the cases. A subclass overrides the fixture `root`, and `features` and `limits` as needed."""

    features: Features = Features()
    limits: Limits = Limits()

    @pytest.fixture
    def root(self) -> Path:
        raise NotImplementedError("override the fixture `root`: it gives the directory under test, as a Path")

    @pytest.fixture
    def d(self, root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
        """An empty directory for one case."""
        self.require(getattr(request.function, "needs", ()))
        directory = root / f"case-{request.node.originalname}"
        directory.mkdir()
        # Below a setgid parent, a new directory has the bit too; the cases start from a known mode.
        if self.features.persistent_modes:
            directory.chmod(0o755)
        with umask(0o022):
            yield directory
        shutil.rmtree(directory)

    @pytest.fixture
    def file(self, d: Path) -> Path:
        """A file of one byte, `x`, in the directory of the case."""
        (d / "file").write_bytes(b"x")
        return d / "file"

    @pytest.fixture
    def fd(self, d: Path) -> Iterator[int]:
        """A new and empty `file` in the directory of the case, open for reading and writing."""
        with opened(d / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            yield fd

    def require(self, words: Iterable[str]) -> None:
        """Skip a case, or one of a loop, unless the class declares each of these features and limits."""
        for word in words:
            if not self.has(word):
                pytest.skip(f"needs {word}, which is not declared here" if word != "root" else "needs root")

    def has(self, word: str) -> bool:
        """Return whether the class declares this feature or limit; `root` means that the tests run as root."""
        if word == "root":
            return os.geteuid() == 0
        source: object = self.features if hasattr(self.features, word) else self.limits
        return bool(getattr(source, word))

    def makers(self) -> dict[str, Callable[[str], object]]:
        """Return the kinds of files that the class declares, each with a maker of one at a path."""
        return {kind: maker for kind, (words, maker) in MAKERS.items() if all(map(self.has, words))}


@contextlib.contextmanager
def fails(*numbers: int, match: str = "") -> Iterator[None]:
    """Fail unless the body raises `OSError` with one of these errnos, and a text in which `match` is found."""
    try:
        yield
    except OSError as error:
        wanted = " or ".join(errno.errorcode[number] for number in numbers)
        assert error.errno in numbers, f"expected {wanted}, got {errno.errorcode.get(error.errno or 0)}: {error}"
        assert re.search(match, str(error)), f"{match!r} is not in {str(error)!r}"
        return
    pytest.fail(f"no error, expected {' or '.join(errno.errorcode[number] for number in numbers)}", pytrace=True)


def refused(numbers: int | tuple[int, ...], call: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
    """Fail unless the call raises `OSError` with this errno, or one of these."""
    with fails(*((numbers,) if isinstance(numbers, int) else numbers)):
        call(*arguments, **options)


def all_refused(*rows: tuple[int | tuple[int, ...], Callable[..., object], *tuple[Any, ...]]) -> None:
    """Check every row, in order: an errno (or some), a call and its arguments. All run; each failure names its row."""
    for case in each({f"row {number}: {row}": row for number, row in enumerate(rows)}):
        with case as (numbers, call, *arguments):
            refused(numbers, call, *arguments)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def opened(
    path: Path | bytes | str, flags: int, mode: int = 0o644, *, dir_fd: int | None = None
) -> contextlib.AbstractContextManager[int]:
    """`open(2)` for the length of a block."""
    return closing_fd(os.open(path, flags, mode, dir_fd=dir_fd))


@contextlib.contextmanager
def fresh(d: Path) -> Iterator[Path]:
    """Make an empty directory below `d` for the length of a block, in which one case of a loop works.

    Each has a name of its own: SeaweedFS goes on listing directories that were below an earlier one.
    """
    directory = d / f"own{next(_NUMBERS)}"
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def make(d: Path, files: Mapping[str, bytes | None]) -> None:
    """Make files with these contents below `d`, and directories where the content is None, with those above them."""
    for name, content in files.items():
        path = d / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content)


def tree(d: Path) -> dict[str, bytes | None]:
    """Return what is below `d`, as `make` takes it; a symbolic link is the file that it leads to."""
    found = {str(path.relative_to(d)): path for path in sorted(d.rglob("*"))}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


def renameat2(source: Path | str, target: Path | str, flags: int) -> None:
    """`renameat2(2)`, which Python does not have. Raises OSError."""
    names = os.fsencode(source), os.fsencode(target)
    called("renameat2", os.fspath(source), AT_FDCWD, names[0], AT_FDCWD, names[1], ctypes.c_uint(flags))


def as_user(directory: Path, action: Callable[[], Any], uid: int = NOBODY, groups: tuple[int, ...] = ()) -> Any:
    """Run `action` as another user in a child with the working directory `directory`; return its result.

    The child changes its directory first, as root, so the user needs no access to the directories above. An exception
    in the child is raised here; an OSError keeps its errno.
    """

    def other() -> Any:
        os.chdir(directory)
        os.setgroups(list(groups))
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        return action()

    return in_child(other)


def drop_capabilities() -> None:
    """Drop all capabilities and keep the user id, by capset(2), version 3. Call it in a child: there is no way back."""
    called("capset", None, struct.pack("Ii", 0x20080522, 0), bytes(24))


def in_child(action: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Run `action` in a forked child; return its result or raise its exception, as `ForkedChild.result`."""
    return ForkedChild(action).result(timeout_s)


class ForkedChild:
    """A forked process that runs one function and sends its result to the parent through a pipe."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._answers, answers = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_answer, args=(action, answers), daemon=True)
        self._process.start()
        answers.close()

    def result(self, timeout_s: float = 60.0) -> Any:
        """Return the function's result, or raise its exception. Kill the child where it has none after `timeout_s`."""
        try:
            assert self._answers.poll(timeout_s), f"the child did not end within {timeout_s} s"
            good, value = self._answers.recv()
        except EOFError:
            pytest.fail("the child died without a word")
        finally:
            self._process.kill()
            self._process.join()
            self._answers.close()
        if not good:
            raise value
        return value


def _answer(action: Callable[[], Any], answers: Connection) -> None:
    try:
        answer = True, action()
    except OSError as error:
        answer = False, OSError(error.errno, error.strerror)
    except BaseException as error:  # some exceptions can't be pickled
        answer = False, AssertionError(f"in the child: {type(error).__name__}: {error}")
    answers.send(answer)
