"""Anchors: ends of a history's hash chain (`chain.py`), kept where the server's user can't change them afterwards.

The user of the server can write the file of the history anew, with all digests, and can cut its end off. Not unseen, if
a head of the chain is kept elsewhere: `[log] anchor` has the server write it

    journald               into the journal of systemd, which belongs to root
    file:/var/log/anchors  a line at the end of a file: another host's, or one that root has made `chattr +a`
    s3://BUCKET/PREFIX     as an object of its own (also `gs:`, `az:`), where the credentials can't delete, or there is
                           an object lock

Each anchor names the mount point, so several mounts may share a place. It is written when the mount begins, then every
`anchor_every_s` while there is something new, or after `MOST_LINKS` new links, and at the end. The history is on the
disk before: a power cut leaves none that has seen more than is there.

`Anchoring` has a thread of its own, for a place may be far away; nothing of it is in the path of a change.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

from fusebackend.base.deadline import GivenUp, Pending

if TYPE_CHECKING:
    from fusebackend.history.chain import Position

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
"""Interval of anchors, where `[log] anchor_every` says nothing."""

MOST_LINKS: Final = 1000
"""So many new links are anchored before the interval is over."""

LOOK_S: Final = 0.5
"""How often the links are counted."""

PATIENCE_S: Final = 10.0
"""The begin and the end of a mount, and `verify`, wait so long for a place."""

JOURNAL: Final = "/run/systemd/journal/socket"
IDENTIFIER: Final = "fusebackend"

T = TypeVar("T")

_BUCKETS: Final = ("s3", "gs", "az")
_OBJECT: Final = re.compile(r"(\d+)-([0-9a-f]+)\Z")


class Place(Protocol):
    """Where anchors are kept. The methods raise OSError, and may wait."""

    name: str
    """For people."""

    def write(self, mountpoint: str, anchor: str) -> None:
        """Keep an anchor, `LINK:HEAD`, for good."""

    def read(self, mountpoint: str) -> list[str]:
        """Return all anchors of a mount."""


def place_of(text: str) -> Place:
    """Return the place that `[log] anchor` names. It is not asked yet.

    Raises:
        ValueError: there is no such place.
    """
    scheme, colon, rest = text.partition(":")
    if text == "journald":
        return JournalPlace()
    if scheme == "file" and colon:
        if not rest.startswith("/"):
            raise ValueError(f"anchor = {text!r}: give an absolute path, such as 'file:/var/log/fusebackend.anchors'")
        return FilePlace(rest)
    if scheme in _BUCKETS and colon:
        from fusebackend.urls.opening import parse

        return BucketPlace(parse(text).text)
    raise ValueError(f"anchor = {text!r}: give journald, file:/PATH or s3://BUCKET/PREFIX")


def _quoted(mountpoint: str) -> str:
    """Return a mount point as one word of ASCII."""
    return quote(os.fsencode(mountpoint))


class FilePlace:
    """A file with a line for each anchor: time, anchor, mount point."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = f"file:{path}"

    def write(self, mountpoint: str, anchor: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            line = f"{_now()} {anchor} {_quoted(mountpoint)}\n".encode()
            if os.write(descriptor, line) != len(line):
                os.write(descriptor, b"\n")  # the next line begins anew
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, mountpoint: str) -> list[str]:
        with open(self.path, encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
        # A line that was cut off proves nothing; neither does a missing one, which anybody can make of it.
        return [row[1] for row in rows if len(row) == 3 and row[2] == _quoted(mountpoint)]


class JournalPlace:
    """The journal of systemd (systemd.journal-fields(7)), by its native protocol. `journalctl` reads it.

    Only entries of this user count: `_UID` is set by the journal itself.
    """

    name = "journald"

    def write(self, mountpoint: str, anchor: str) -> None:
        quoted = _quoted(mountpoint)
        fields = {
            "MESSAGE": f"the log of {quoted} ends with {anchor}",
            "PRIORITY": "6",
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "FUSEBACKEND_MOUNT": quoted,
            "FUSEBACKEND_ANCHOR": anchor,
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.settimeout(PATIENCE_S)
            try:
                journal.sendto("".join(f"{key}={value}\n" for key, value in fields.items()).encode(), JOURNAL)
            except FileNotFoundError:
                raise OSError(errno.ENOENT, f"there is no journal at '{JOURNAL}'") from None

    def read(self, mountpoint: str) -> list[str]:
        program = shutil.which("journalctl")
        if program is None:
            raise OSError(errno.ENOENT, "journalctl is not installed")
        wanted = [f"_UID={os.geteuid()}", f"SYSLOG_IDENTIFIER={IDENTIFIER}", f"FUSEBACKEND_MOUNT={_quoted(mountpoint)}"]
        words = [program, "--no-pager", "--quiet", "--output=json", "--output-fields=FUSEBACKEND_ANCHOR", *wanted]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/"
            )
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, "journalctl does not answer") from None
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise OSError(errno.EIO, f"journalctl failed: {why}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line]
        return [row["FUSEBACKEND_ANCHOR"] for row in rows if isinstance(row.get("FUSEBACKEND_ANCHOR"), str)]


class BucketPlace:
    """A prefix of a bucket with an object for each anchor, `MOUNT/LINK-HEAD`. A listing reads them."""

    def __init__(self, url: str) -> None:
        from fusebackend.urls.opening import mask

        self._url = url
        self.name = mask(url)

    def _directory(self, mountpoint: str) -> str:
        return "/" + quote(os.fsencode(mountpoint), safe="").replace("%", "=")

    def write(self, mountpoint: str, anchor: str) -> None:
        link, _, head = anchor.partition(":")
        name = f"{self._directory(mountpoint)}/{int(link):016}-{head}"
        answer = self._ask(lambda backend: backend.upload_files([(name, f"{_now()} {anchor}\n".encode())])[0])
        if answer.error is not None:
            raise OSError(errno.EIO, str(answer.error))

    def read(self, mountpoint: str) -> list[str]:
        answer = self._ask(lambda backend: backend.ls(self._directory(mountpoint)))
        if answer.error is not None and "path_not_found" not in answer.error:  # none has been written yet
            raise OSError(errno.EIO, answer.error)
        found = [_OBJECT.search(each["path"]) for each in answer.entries or ()]
        return [f"{int(match[1])}:{match[2]}" for match in found if match is not None]

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Ask a backend of its own: nothing of an earlier answer is cached."""
        from fusebackend.urls.opening import open_backend

        try:
            backend = open_backend(self._url)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        try:
            return question(backend)
        finally:
            if hasattr(backend, "close"):
                backend.close()


class Chained(Protocol):
    """A history (`HistoryFile`), as `Anchoring` uses it."""

    @property
    def end(self) -> Position: ...
    def durable_end(self) -> Position: ...


class Anchoring:
    """Keeps the end of a history's chain in a place; see the module's docstring.

    Args:
        history: of the mount.
        place: where.
        mountpoint: names the mount in that place.
        every_s: interval, in seconds.
    """

    def __init__(self, history: Chained, place: Place, mountpoint: str, every_s: float = EVERY_S) -> None:
        self.place = place
        self._history = history
        self._mountpoint = mountpoint
        self._every_s = every_s
        self._last: Position | None = None
        self._failed: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusebackend-anchor", daemon=True)

    def start(self) -> str | None:
        """Write the first one. Returns why that failed, as a line; it is tried again. None if it is there."""
        self._patiently(self._write)
        self._thread.start()
        return None if self._failed is None else f"the log has no anchor in {self.place.name}: {self._failed}"

    def close(self) -> None:
        """Write the last one. After the history was closed."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self._patiently(self._write)

    def read(self) -> Sequence[str]:
        """Return the anchors that are kept. OSError: the place can't be read, or does not answer in time."""
        return _timely(lambda: self.place.read(self._mountpoint))

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {
            "place": self.place.name,
            "link": None if self._last is None else self._last.link,
            "failed": self._failed,
        }

    def _run(self) -> None:
        at_s = time.monotonic() + self._every_s
        while not self._ending.wait(min(LOOK_S, self._every_s)):
            link = -1 if self._last is None else self._last.link
            if time.monotonic() < at_s and self._history.end.link - link < MOST_LINKS:
                continue
            self._write()
            at_s = time.monotonic() + self._every_s

    def _patiently(self, work: Callable[[], None]) -> None:
        try:
            _timely(work)
        except GivenUp as error:
            self._fail(str(error))

    def _write(self) -> None:
        try:
            end = self._history.durable_end()
            if end == self._last:
                return
            self.place.write(self._mountpoint, f"{end.link}:{end.head.hex()}")
            self._last, self._failed = end, None
        except OSError as error:
            self._fail(error.strerror or str(error))

    def _fail(self, why: str) -> None:
        if self._failed is None:
            log.error("the end of the log can't be kept in %s: %s", self.place.name, why)
        self._failed = why


def _timely(work: Callable[[], T]) -> T:
    until_s = time.monotonic() + PATIENCE_S
    return Pending(work).result(lambda: max(0.0, until_s - time.monotonic()))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
