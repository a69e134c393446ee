"""What is open, and the path that it was opened by: `AtPath` notices when that path leads elsewhere, `Followed` opens
anew what is there then.

A path is not a file. Others move a file over it (rename(2)), remove it and make it anew, copy onto it, or switch
a symbolic link on the way; a descriptor of the old file stays with that. A look is one stat(2), 1.5 µs. An open
descriptor keeps an inode's number from being given to another file.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

Key: TypeAlias = tuple[int, int]
"""The device and the inode number of a file."""

OPENINGS: Final = 10
"""How often something is opened whose path leads elsewhere afterwards, before that is an error."""


class FileState(NamedTuple):
    """Another one after a file was written to, or another file took its place."""

    key: Key
    mtime_ns: int
    size: int


def state_at(path: str) -> FileState | None:
    """The state of what is at a path now; None where nothing is, or nothing that may be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileState((found.st_dev, found.st_ino), found.st_mtime_ns, found.st_size)


class AtPath:
    """A file or directory that is open, and the path that it was opened by.

    Args:
        key: of what is open.
        words: what to do when it is not at the path any more.
    """

    def __init__(
        self, path: str, key: Key, words: str = "its file {} was moved or deleted; bring it back, or copy what is here"
        " elsewhere"
    ) -> None:  # fmt: skip
        self.path = os.path.abspath(path)
        self.key = key
        self._words = words.format(path)
        self._gone_since = 0.0

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`: set while the path leads elsewhere, or nowhere."""
        found = state_at(self.path)
        if found is not None and found.key == self.key:
            self._gone_since = 0.0
            return None
        if not self._gone_since:
            self._gone_since = time.time()
            log.error("what is stored can't be relied on: %s", self._words)
        return self._gone_since, self._words

    def require(self) -> None:
        """EIO where the path leads elsewhere: what is written now would be lost with the last descriptor."""
        if (trouble := self.trouble) is not None:
            raise OSError(errno.EIO, trouble[1])


class Followed(Generic[T]):
    """What is open at a path, opened anew when another file is there, or when it was written to unseen.

    While nothing is at the path, what was open stays. Not thread-safe.

    Args:
        open_it: opens what is at the path.
        close: closes what was opened.
        has_seen: whether what is open shows a change of its file by itself.
        follows: False: what was opened first stays, as something else in this process has it open as well.

    Raises:
        OSError: EBUSY where the path leads elsewhere after each opening. What `open_it` raises.
    """

    def __init__(
        self,
        path: str,
        open_it: Callable[[], T],
        close: Callable[[T], None],
        has_seen: Callable[[T], bool] = lambda _: False,
        *,
        follows: bool = True,
    ) -> None:
        self.path = os.path.abspath(path)
        self.openings = 0
        """How often it was opened."""
        self._open_it = open_it
        self._close = close
        self._has_seen = has_seen
        self._follows = follows
        self._failed: tuple[float, str] | None = None
        self._opened: T | None = None
        self._state: FileState
        self._open()

    def get(self) -> T:
        """What is open, after a look at the path. EIO, with the reason, where what is there now can't be opened."""
        now = state_at(self.path)
        if now is None or (now == self._state and self._opened is not None):
            return self.opened
        if self._opened is None or (now.key != self._state.key and self._follows):
            self.reopen()
        elif now.key == self._state.key:
            if self._has_seen(self._opened):
                self._state = now
            else:
                self.reopen()
        return self.opened

    @property
    def opened(self) -> T:
        """What is open, without a look. EIO as `get`."""
        if self._opened is None:
            assert self._failed is not None
            raise OSError(errno.EIO, self._failed[1])
        return self._opened

    @property
    def key(self) -> Key:
        return self.at.key

    def wrote(self) -> None:
        """This process has just written to the file."""
        now = state_at(self.path)
        if now is not None and now.key == self._state.key:
            self._state = now

    @property
    def trouble(self) -> tuple[float, str] | None:
        """As `Volume.trouble`."""
        if self._failed is not None:
            return self._failed
        if self._follows and state_at(self.path) is not None:
            return None  # if it is another one, the next look opens it
        return self.at.trouble

    def close(self) -> None:
        if self._opened is not None:
            self._close(self._opened)

    def _open(self) -> None:
        for _ in range(OPENINGS):
            before = state_at(self.path)
            opened = self._open_it()
            state = state_at(self.path)
            if state is not None and (before is None or before.key == state.key):
                self._opened, self._state, self._failed = opened, before or state, None
                self.at = AtPath(self.path, state.key)
                self.openings += 1
                return
            self._close(opened)  # another one took the path meanwhile: which of them this is can't be told
        raise OSError(errno.EBUSY, f"'{self.path}' is another file each time that it is opened")

    def reopen(self) -> None:
        """Open what is at the path now in place of what is open. EIO as `get`."""
        # First closed: SQLite drops its locks on a -shm that both have when one of them is closed (fcntl(2)).
        self.close()
        self._opened = None
        try:
            self._open()
        except Exception as error:  # of the library that opens it
            words = getattr(error, "strerror", None) or error
            why = f"its file {self.path} was replaced, and can't be used: {words}"
            if self._failed is None:
                log.error("what is stored can't be relied on: %s", why)
            self._failed = self._failed[0] if self._failed is not None else time.time(), why
            raise OSError(errno.EIO, self._failed[1]) from error
