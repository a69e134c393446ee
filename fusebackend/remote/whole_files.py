"""`WholeFiles`: the contents of a `ForeignVolume`'s files, over a backend that gives and takes whole files only.

A file that is open has a `Buffer`, filled when it was opened; what was written to it is uploaded by `store`. Before an
upload the file is downloaded again (a backend with `upload_if` compares by itself, in one step): when it is not what
the buffer was made from, somebody else has written or deleted it. Theirs stays then, ours is uploaded beside it as
`name.conflict-<time>`, and `store` raises ESTALE. An upload that fails keeps the buffer and its `dirty` mark, so that
it can be tried again.

Everything here may wait for the backend and runs under the volume's lock.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from fusebackend.base import paths
from fusebackend.base.errors import CONFLICT, FILE_NOT_FOUND, oserror
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.remote.buffer import Buffer, digest_of
from fusebackend.remote.entry import Entry
from fusebackend.remote.files_update import apply_files_update
from fusebackend.remote.tree import OWN, ForeignTree

log = logging.getLogger(__name__)

APPEND_ATTEMPTS = 20
"""How often an append is tried on a file that others change all the time."""

HOPELESS = frozenset({errno.EEXIST, errno.EILSEQ})
"""A backend that takes text only answers these for what it can't replace and what is no text."""

PROBE_FILES = 64
PROBE_BYTES = 8 << 20
"""Bounds of one batch of downloads to know sizes, and of the bytes that are kept of them for the `open` to come."""


class WholeFiles:
    """See the module's docstring. `clock` gives seconds that only grow."""

    def __init__(self, face: AgentFace, tree: ForeignTree, clock: Callable[[], float]) -> None:
        self._face = face
        self._tree = tree
        self._clock = clock
        # A backend that can compare and put in one step does; see `StoreBackend.upload_if`.
        self._upload_if = getattr(face.backend, "upload_if", None)
        self._recent: OrderedDict[AgentPath, tuple[float, bytes]] = OrderedDict()

    # -- the backend -------------------------------------------------------------------------------------------

    def download(self, path: AgentPath, *, recent: bool = False) -> bytes | None:
        """A file's bytes, None when there is no such file. With `recent`, they may be as old as a listing."""
        known = self._recent.get(path)
        if recent and known is not None and self._clock() - known[0] < self._tree.ttl_s:
            return known[1]
        (answer,) = self._face.download_files([path])
        if answer.error is None:
            return answer.content
        if answer.error == FILE_NOT_FOUND:
            return None
        raise self._tree.failure(answer.error, path)

    def upload(self, path: AgentPath, data: bytes) -> None:
        (answer,) = self._face.upload_files([(path, data)])
        self._recent.pop(path, None)
        if answer.error is not None:
            raise self._tree.failure(answer.error, path)
        runtime = getattr(self._face.backend, "runtime", None)
        if answer.files_update and runtime is not None:  # a state-backed one leaves it to its caller, as in the seeds
            apply_files_update(runtime, answer.files_update)

    def delete(self, path: AgentPath) -> str | None:
        """Why it could not be deleted."""
        self._recent.pop(path, None)
        result = self._face.delete(path)
        runtime = getattr(self._face.backend, "runtime", None)
        if result.files_update and runtime is not None:
            apply_files_update(runtime, result.files_update)
        return result.error

    def expire(self) -> None:
        self._recent.clear()

    # -- sizes -------------------------------------------------------------------------------------------------

    def measure(self, entries: Iterable[Entry]) -> None:
        """Know the true sizes of files. One that can't be downloaded keeps the size the backend claims: opening it will
        say what is wrong."""
        batch: list[Entry] = []
        claimed = 0
        for entry in entries:
            if entry.is_dir or entry.measured or entry.buffer is not None:
                continue
            if batch and (len(batch) >= PROBE_FILES or claimed + entry.size > PROBE_BYTES):
                self._probe(batch)
                batch, claimed = [], 0
            batch.append(entry)
            claimed += entry.size
        if batch:
            self._probe(batch)

    def _probe(self, batch: list[Entry]) -> None:
        now = self._clock()
        wanted = [self._tree.path(entry) for entry in batch]
        answers = self._face.download_files(wanted)
        for entry, path, answer in zip(batch, wanted, answers, strict=True):
            if answer.content is None:
                log.info("%s: the size of %s is not known: %s", self._face.name, path, answer.error)
                continue
            self._seen(entry, answer.content)
            self._recent[path] = (now, answer.content)
            self._recent.move_to_end(path)
        kept = sum(len(data) for _, data in self._recent.values())
        while self._recent:
            read_at, data = next(iter(self._recent.values()))
            if kept <= PROBE_BYTES and now - read_at < self._tree.ttl_s:
                return
            self._recent.popitem(last=False)
            kept -= len(data)

    def _seen(self, entry: Entry, data: bytes) -> bytes:
        """These are a file's bytes now; returns their digest."""
        digest = digest_of(data)
        if entry.digest not in (None, digest):
            entry.touch()
        entry.digest = digest
        entry.resize(len(data))
        entry.measured = True
        return digest

    # -- buffers -----------------------------------------------------------------------------------------------

    def buffer(self, entry: Entry) -> Buffer:
        """The buffer of a file, filled now if it is not. EISDIR; ESTALE when the file is gone or in conflict."""
        if entry.is_dir:
            raise oserror(errno.EISDIR)
        if entry.poisoned:
            raise oserror(errno.ESTALE)
        return entry.buffer if entry.buffer is not None else self.load(entry)

    def load(self, entry: Entry) -> Buffer:
        """Fill the buffer with what the backend has now; the one there is, unless that has changed."""
        data = None if self._tree.is_gone(entry) else self.download(self._tree.path(entry), recent=True)
        if data is None:
            if not entry.gone:
                self._tree.detach(entry)
            raise oserror(errno.ESTALE)
        digest = self._seen(entry, data)
        if entry.buffer is None or entry.baseline != digest:
            entry.drop_buffer()
            entry.buffer, entry.baseline = Buffer(data), digest
        return entry.buffer

    def admit(self, entry: Entry, flags: int) -> None:
        """One more handle with these `open(2)` flags."""
        if _writes_anywhere(flags):
            if entry.writers == 0:
                entry.pinned = entry.baseline
            entry.writers += 1

    def dismiss(self, entry: Entry, flags: int) -> None:
        """One less."""
        if _writes_anywhere(flags):
            entry.writers -= 1

    def write(self, entry: Entry, offset: int, data: bytes) -> None:
        """Write into the buffer."""
        buffer = self.buffer(entry)
        if not data:
            return
        only_appended = not entry.writers and offset == buffer.size
        if not entry.dirty:
            entry.appended_from = buffer.size if only_appended else None
        elif not only_appended:
            entry.appended_from = None
        buffer.write(offset, data)
        self._changed(entry)

    def _changed(self, entry: Entry) -> None:
        """The buffer has other bytes now. Those of a file that was unlinked here go when it is closed."""
        assert entry.buffer is not None
        entry.dirty = not entry.unlinked
        entry.resize(entry.buffer.size)
        entry.touch()

    def truncate(self, entry: Entry, size: int) -> None:
        """Cut or extend a file; at once where nobody has it open, else with what is written next."""
        buffer, was_dirty = self.buffer(entry), entry.dirty
        buffer.resize(size)
        entry.appended_from = None
        self._changed(entry)
        if entry.opens:
            return
        try:
            self.store(entry)
        except OSError:
            if not was_dirty:
                self.revert(entry)
            raise
        self.drop(entry)

    def require_replaceable(self, entry: Entry) -> None:
        """EEXIST for a file that the backend has and, as is known by now, can't put another in the place of."""
        if self._face.texts.write_once and not entry.local and not entry.is_dir:
            raise oserror(errno.EEXIST, entry.name)

    def drop(self, entry: Entry) -> None:
        """Let go of a buffer nobody has open and nothing is lost with."""
        if not entry.dirty and not entry.opens:
            entry.drop_buffer()

    def revert(self, entry: Entry) -> None:
        """Forget what was written to a buffer that nobody has open."""
        entry.dirty = entry.measured = False
        entry.stamp = None
        self.drop(entry)

    def store(self, entry: Entry) -> bool:
        """Upload a buffer that was written to.

        Returns:
            Does the file differ now from what was written here? What others have put before an append is there as well.

        Raises:
            OSError: ESTALE after a conflict, which is settled then; one that is `HOPELESS`, and the buffer is given up;
                another errno, and the buffer is still dirty.
        """
        if not entry.dirty:
            return False
        assert entry.buffer is not None, f"node {entry.node} has nothing to store"
        path, digest = self._tree.path(entry), entry.buffer.digest()
        baseline = entry.pinned if entry.writers else entry.baseline
        differs = False
        try:
            stored = not self._tree.is_gone(entry) and self._put(path, entry.buffer, digest, baseline)
        except OSError as error:
            if self._face.text_only and error.errno in HOPELESS:
                self._give_up(entry)
            raise
        if not stored:
            differs = self._append_again(entry, path)
            if not differs:
                self._keep_beside(entry, path)
                raise oserror(errno.ESTALE, path)
            digest = entry.buffer.digest()
        entry.baseline = entry.digest = entry.pinned = digest
        entry.stamp = OWN
        entry.dirty = False
        entry.measured = True
        entry.appended_from = None
        self._tree.stored(entry)
        return differs

    def _give_up(self, entry: Entry) -> None:
        """Forget what was written to a file; a new one that the backend never had loses its name."""
        entry.dirty = entry.measured = False
        entry.stamp = entry.baseline = entry.pinned = entry.appended_from = None
        entry.version += 1
        entry.drop_buffer()
        if entry.local:
            self._tree.unlinked(entry)
        self._tree.expire()

    def _append_again(self, entry: Entry, path: AgentPath) -> bool:
        """Append to what is there now what was appended to the buffer, if that is all that was done to it."""
        if entry.appended_from is None or self._upload_if is None or self._tree.is_gone(entry):
            return False
        assert entry.buffer is not None
        tail = entry.buffer.read(entry.appended_from, entry.buffer.size)
        for _ in range(APPEND_ATTEMPTS):
            data = self.download(path)
            if data is None:
                return False
            if self.upload_if(path, data + tail, digest_of(data)):
                entry.drop_buffer()
                entry.buffer = Buffer(data + tail)
                entry.resize(entry.buffer.size)
                entry.touch()
                return True
        return False

    def _put(self, path: AgentPath, buffer: Buffer, digest: bytes, baseline: bytes | None) -> bool:
        """Upload a buffer over what it was made from; False when that is not there any more, nor the same already."""
        if self._upload_if is not None and self.upload_if(path, buffer.read(0, buffer.size), baseline):
            return True
        data = self.download(path)
        current = None if data is None else digest_of(data)
        if current == digest:
            return True
        if self._upload_if is not None or current != baseline:
            return False
        self.upload(path, buffer.read(0, buffer.size))
        return True

    def upload_if(self, path: AgentPath, data: bytes, digest: bytes | None) -> bool:
        """Upload over bytes of this digest, None for nothing; False when something else is there."""
        assert self._upload_if is not None
        answer = self._upload_if(path, data, digest)
        self._recent.pop(path, None)
        if answer.error == CONFLICT:
            return False
        if answer.error is not None:
            raise self._tree.failure(answer.error, path)
        return True

    def _keep_beside(self, entry: Entry, path: AgentPath) -> None:
        assert entry.buffer is not None
        if entry.buffer.size:
            beside = conflict_path(path)
            self.upload(beside, entry.buffer.read(0, entry.buffer.size))
            log.error("%s: %s was changed by others; what was written here is in %s", self._face.name, path, beside)
        entry.dirty = entry.local = entry.measured = False
        entry.poisoned = entry.opens > 0
        entry.stamp = entry.digest = None
        entry.drop_buffer()
        self._tree.expire()


def _writes_anywhere(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) and not flags & os.O_APPEND


def conflict_path(path: AgentPath) -> AgentPath:
    """Where the bytes go that lost a conflict over `path`, `name.conflict-<time>`."""
    directory, name = paths.parent_and_name(path)
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ns // 10**9))
    suffix = f".conflict-{stamp}.{now_ns % 10**9:09d}"
    short = paths.to_name(name)[: NAME_MAX_BYTES - len(suffix)].decode("utf-8", "ignore")
    return paths.join(directory, short + suffix)
