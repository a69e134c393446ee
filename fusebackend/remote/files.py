"""`RemoteFiles`: the contents of files, read in ranges or as a whole, and written to a buffer until they are stored.

A remote with ranges gives a file that is only read a `Reader` of the version that was opened; the first write loads it
into a `Buffer`. Of any other remote the whole comes when the file is opened. A buffer is stored when the file is
flushed, synced or closed for the last time. A failed upload is tried again at the next flush, at `sync` and at the end.

Each open asks for the version there is. A handle that writes anywhere keeps the version it has opened as the condition
of the upload. Handles that only append (`O_APPEND`, and no other writer) take what is there by then.

A buffer is stored on the condition that the remote still has the version that was opened, or nothing where the file is
new. Where it has something else, there are three cases. Equal bytes: an upload has arrived, and its answer was lost;
without such an upload, another may have appended the same. A buffer that was only appended to: the same is appended to
the current file. Else theirs stays, ours is stored beside it as `name.conflict-<time>`, and `upload` raises ESTALE. Any
other error leaves the buffer dirty, to be tried again.

An entry's own lock is held around all work on its content, requests included: one file never waits for another. Each
change in the remote passes the gate first.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain

from fusebackend.base import paths
from fusebackend.base.errors import oserror, unless
from fusebackend.base.paths import AgentPath
from fusebackend.base.stamps import now_ns
from fusebackend.base.waiting import will_wait
from fusebackend.protocol import NAME_MAX_BYTES
from fusebackend.protocol.remote import Etag, Reader, Remote
from fusebackend.remote.buffer import Buffer
from fusebackend.remote.entry import OWN, Entry
from fusebackend.remote.parallel import WIDTH, Gate, attempted, each
from fusebackend.remote.tree import Tree

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""A remote that lets a request wait for longer, and then fails, is not asked for each file."""

ATTEMPTS = 20
"""How often something is tried on a file that others change all the time."""


def conflict_path(path: AgentPath) -> AgentPath:
    """Where the bytes go that lost a conflict over `path`, `name.conflict-<time>`."""
    directory, name = paths.parent_and_name(path)
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ns // 10**9))
    suffix = f".conflict-{stamp}.{now_ns % 10**9:09d}"
    short = paths.to_name(name)[: NAME_MAX_BYTES - len(suffix)].decode("utf-8", "ignore")
    return paths.join(directory, short + suffix)


class RemoteFiles:
    """See the module's docstring."""

    def __init__(self, remote: Remote, tree: Tree, gate: Gate) -> None:
        self._remote = remote
        self._ranges = remote.abilities.ranges
        self._width = WIDTH if remote.abilities.concurrent else 1
        self._tree = tree
        self._gate = gate

    # -- what the remote has -----------------------------------------------------------------------------------

    def stamp(self, entries: Iterable[Entry]) -> None:
        """Know the attributes and true sizes of entries. A file that has gone loses its name."""
        unknown = [entry for entry in entries if not entry.stamped and not entry.busy and not entry.gone]
        if not unknown:
            return
        wanted = [(entry.key, entry.size) for entry in unknown]
        heads = self._remote.heads(wanted)
        with self._tree.lock:
            for entry, (key, _), head in zip(unknown, wanted, heads, strict=True):
                if entry.stamped or entry.busy or isinstance(head, OSError) or entry.key != key:
                    continue  # known or renamed meanwhile, or unknown: the next open raises the error
                if head is not None:
                    self._tree.know(entry, head)
                elif entry.is_dir:
                    entry.listing.marker, entry.stamped = False, True
                else:
                    self._tree.detach(entry)

    def look(self, entry: Entry, *, fetch: bool = False) -> None:
        """See which version the remote has now. ESTALE when it has none.

        Args:
            fetch: the content is wanted next.
        """
        while True:
            key = entry.key
            head = None if entry.is_gone else self._remote.head(key, entry.etag, entry.size if fetch else 0)
            if entry.key == key:
                break  # else its directory was renamed meanwhile
        if head is None:
            if not entry.gone and not (self._ranges and entry.opens):
                self._tree.detach(entry)
            raise oserror(errno.ESTALE, entry.key)
        if head.etag != entry.etag:
            entry.drop_content()
        self._tree.know(entry, head)
        if not self._ranges and entry.buffer is None:
            assert head.content is not None, "a remote without ranges brings the whole"
            entry.buffer = Buffer(head.content)

    def _look_at_file(self, entry: Entry, *, fetch: bool = False) -> None:
        """`look`; ELOOP for a link, which a listing takes for a file."""
        self.look(entry, fetch=fetch)
        if stat.S_ISLNK(entry.mode):
            raise oserror(errno.ELOOP, entry.name)

    # -- handles -----------------------------------------------------------------------------------------------

    def open(self, entry: Entry, flags: int) -> None:
        """One more handle with these `open(2)` flags. ESTALE when the file is gone or in conflict."""
        with entry.lock:
            if entry.lost:
                raise oserror(errno.ESTALE, entry.key)
            if not entry.is_dir and not entry.dirty and not entry.unlinked:
                self._look_at_file(entry, fetch=flags & os.O_ACCMODE == os.O_RDONLY)
            with self._tree.lock:
                entry.opens += 1
            self.admit(entry, flags)

    def admit(self, entry: Entry, flags: int) -> None:
        if _writes_anywhere(flags):
            if entry.writers == 0:
                entry.base = entry.etag
            entry.writers += 1

    def create(self, entry: Entry, flags: int) -> None:
        """Open a new file, which is in this volume alone until it is flushed."""
        entry.buffer, entry.dirty, entry.opens = Buffer(), True, 1
        self.admit(entry, flags)

    def release(self, entry: Entry, flags: int) -> None:
        """One handle less. A failed upload keeps its buffer and is logged, for close(2) has returned already."""
        with self._gate.passing(), entry.lock:
            assert entry.opens > 0, f"node {entry.node} released more often than opened"
            is_last = entry.opens == 1
            if is_last and entry.dirty:
                will_wait()
            entry.writers -= _writes_anywhere(flags)
            if is_last:
                try:
                    self.upload(entry)
                except OSError as error:
                    log.error("%s: /%s was closed unsaved: %s", self._remote.name, entry.key, error)
                entry.lost = 0
            with self._tree.lock:
                entry.opens -= 1
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        if not entry.busy:
            entry.drop_content()
            self._tree.reap(entry)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, entry: Entry, offset: int, size: int) -> bytes:
        """EISDIR; ESTALE when the version that was opened is gone."""
        if not self._ranges:  # the volume's lock is held
            return self.buffer(entry).read(offset, size)
        while True:
            reader = entry.reader
            if reader is None or entry.buffer is not None:
                with entry.lock:
                    if entry.buffer is not None or entry.is_dir or entry.lost:
                        return self.buffer(entry).read(offset, size)
                    if offset >= entry.size:
                        return b""
                    reader = entry.reader = entry.reader or self._reader(entry, entry.key)
            try:
                return reader.read(offset, size)
            except OSError:
                if entry.reader is reader:
                    raise  # else the file was renamed or written to meanwhile

    def _reader(self, entry: Entry, key: str) -> Reader:
        return self._remote.reader(key, entry.etag, entry.size)

    def buffer(self, entry: Entry) -> Buffer:
        """The buffer of a file, filled now if it is not. EISDIR; ESTALE as `read`."""
        if entry.is_dir:
            raise oserror(errno.EISDIR)
        if entry.lost:
            raise oserror(errno.ESTALE, entry.key)
        if entry.buffer is None:
            if not self._ranges:
                self.look(entry, fetch=True)
            elif entry.size:
                try:
                    entry.buffer = Buffer.of(self._remote.load(entry.key, entry.etag))
                except FileNotFoundError:
                    raise oserror(errno.ESTALE, entry.key) from None
            else:
                entry.buffer = Buffer()
        assert entry.buffer is not None
        return entry.buffer

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, entry: Entry, offset: int, data: bytes) -> None:
        with entry.lock:
            buffer = self.buffer(entry)
            if not data:
                return
            only_appended = not entry.writers and offset == buffer.size
            if not entry.dirty:
                buffer.tail_from = buffer.size if only_appended else None
            elif not only_appended:
                buffer.tail_from = None
            buffer.write(offset, data)
            self._changed(entry, buffer)

    def _changed(self, entry: Entry, buffer: Buffer) -> None:
        """The buffer has other bytes now. Those of a file that was unlinked here go when it is closed."""
        with self._tree.lock:
            entry.dirty = not entry.unlinked
            entry.resize(buffer.size)
            entry.touch()

    def truncate(self, entry: Entry, size: int) -> None:
        """Cut or extend a file: in the buffer of an open one, else in the remote at once."""
        with self._gate.passing(), entry.lock:
            if not entry.busy and not entry.unlinked and not entry.is_dir:
                self.look(entry)
            before, was_dirty = (entry.size, entry.mtime_ns), entry.dirty
            if size == 0 and entry.buffer is None and not entry.is_dir and not entry.lost:
                entry.buffer = Buffer()
            buffer = self.buffer(entry)
            buffer.resize(size)
            buffer.tail_from = None
            self._changed(entry, buffer)
            if entry.opens:
                return
            try:
                self.upload(entry)
            except OSError:
                if not was_dirty and entry.dirty:
                    entry.dirty = False
                    entry.resize(before[0])
                    entry.mtime_ns = before[1]
                    entry.drop_content()
                raise
            entry.drop_content()

    def keep_open(self, entry: Entry) -> None:
        """The file is about to be deleted: have its content here, if it is open."""
        with entry.lock:
            if entry.opens and not entry.lost:
                unless((errno.ESTALE,), self.buffer, entry)  # others have replaced it: its handles get ESTALE anyway

    def relocate(self, entry: Entry, key: str) -> None:
        """The file is at another key as well, and will be there alone. The entry's lock is held."""
        head = self._remote.head(key)
        if head is None or head.size != entry.size:  # or it was written to meanwhile, here or by others
            source = self._remote.head(entry.key)
            if head is None or source is None or source.size != head.size:
                raise OSError(errno.EIO, "The copy is not what was copied", key)
            if source.etag != entry.etag:
                if not entry.busy:
                    self._tree.know(entry, head)
                return  # handles keep their version, which is gone
        with self._tree.lock:
            if entry.base == entry.etag:
                entry.base = head.etag
            entry.etag, entry.seen = head.etag, head.version
            reader, entry.reader = entry.reader, None
            if entry.opens and entry.buffer is None:
                entry.reader = self._reader(entry, key)
        if reader is not None:
            reader.close()

    # -- whole files -------------------------------------------------------------------------------------------

    def put_new(self, entry: Entry, data: bytes) -> None:
        """Store a new file that has no name yet. EEXIST."""
        with closing(Buffer(data)) as buffer:
            ((_, error),) = self.put_all([(entry, buffer)])
        if error is not None:
            raise error

    def put_all(self, new: Sequence[tuple[Entry, Buffer]]) -> list[tuple[Entry, OSError | None]]:
        """Store new files that have no names yet. For each its error: EEXIST; ECANCELED if it was not begun after the
        error of another."""
        files = [(entry.key, buffer, entry.stamp) for entry, buffer in new]
        answers = self._remote.put_all(files)
        if answers is None:
            answers = attempted(lambda file: self._remote.put(*file, over=None, create=True), files, self._width)
        found: list[tuple[Entry, OSError | None]] = []
        for (entry, buffer), answer in zip(new, answers, strict=True):
            if not isinstance(answer, OSError):
                entry.resize(buffer.size)
                entry.etag, entry.seen, entry.local, entry.doubted = answer, OWN, False, False
                found.append((entry, None))
            else:
                is_taken = answer.errno == errno.ESTALE
                found.append((entry, oserror(errno.EEXIST, entry.key) if is_taken else answer))
        return found

    def rewrite(self, entry: Entry, change: Callable[[Callable[[], bytes]], bytes], *, reads: bool = False) -> None:
        """Give a file other bytes in one step. ELOOP for a link that a listing took for a file.

        Args:
            change: makes them of a function that reads the current ones. It is called again when others were faster;
                its exceptions leave the file alone.
            reads: it calls that function.
        """
        with self._gate.passing(), entry.lock:
            if entry.lost:
                raise oserror(errno.ESTALE, entry.key)
            for _ in range(ATTEMPTS):
                if not entry.dirty:
                    self._look_at_file(entry, fetch=reads)
                before = entry.mtime_ns
                try:
                    data = change(partial(self._bytes, entry))
                    entry.mtime_ns = now_ns()
                    with closing(Buffer(data)) as buffer:
                        etag = self._put(entry, entry.key, buffer, entry.etag)
                except OSError as error:
                    entry.mtime_ns = before
                    if error.errno != errno.ESTALE or entry.dirty:
                        raise
                    continue
                with self._tree.lock:
                    entry.drop_content()
                    entry.dirty = False
                    entry.resize(len(data))
                    entry.ctime_ns = entry.mtime_ns
                    entry.version += 1
                    self._is_stored(entry, etag)
                return
        raise oserror(errno.EAGAIN, entry.key)

    def _bytes(self, entry: Entry) -> bytes:
        if entry.buffer is not None:
            return entry.buffer.read(0, entry.buffer.size)
        if self._ranges:  # the reader has what came with the look
            with closing(self._reader(entry, entry.key)) as reader:
                return reader.read(0, entry.size)
        return b"".join(self._remote.load(entry.key, entry.etag)) if entry.size else b""

    def restamp(self, entry: Entry) -> None:
        """Store the new attributes of a file: with its content where that is waiting to be stored, else alone. After an
        error the caller puts the old ones back."""
        if entry.dirty or entry.unlinked:
            return
        wanted = entry.stamp
        for _ in range(ATTEMPTS):
            try:
                etag = self._remote.restamp(entry.key, entry.etag, entry.size, wanted)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.look(entry)
                continue
            with self._tree.lock:
                entry.restamp(wanted)
                if entry.base == entry.etag:
                    entry.base = etag
                entry.etag, entry.seen = etag, OWN
                self._tree.changed(entry)
            return
        raise oserror(errno.EAGAIN, entry.key)

    # -- storing -----------------------------------------------------------------------------------------------

    def store(self, entry: Entry) -> bool:
        """Store a buffer that was written to; passes the gate. Returns and raises as `upload`; what that has
        raised of a buffer that is gone is raised again."""
        differs = False
        if entry.dirty:
            will_wait()
            with self._gate.passing(), entry.lock:
                differs = self.upload(entry)
        if entry.lost:  # looked at last: another thread may just have found that out
            raise oserror(entry.lost, entry.key)
        return differs

    def store_all(self, entries: Iterable[Entry]) -> None:
        """Store those that are not stored, and let go of those that are not open. Each is tried, unless a remote that
        takes one request at a time has let one wait for an error; the first error is raised in the end."""
        is_away = threading.Event()

        def attempt(entry: Entry) -> OSError | None:
            if is_away.is_set():
                log.error("%s: /%s is not stored either: there is no answer", self._remote.name, entry.key)
                return None
            began_s = time.monotonic()
            try:
                with self._gate.passing(), entry.lock:
                    try:
                        self.upload(entry)
                    finally:
                        self._let_go(entry)
            except OSError as error:
                log.error("%s: /%s could not be stored: %s", self._remote.name, entry.key, error)
                if self._width == 1 and time.monotonic() - began_s > PATIENCE_S:
                    is_away.set()  # each file would be waited for as long, with the volume's lock held
                return error
            return None

        for error in each(attempt, (entry for entry in entries if entry.dirty), self._width):
            if error is not None:
                raise error

    def upload(self, entry: Entry) -> bool:
        """Store a buffer that was written to; the caller has passed the gate and holds the entry's lock.

        Returns:
            True if the file differs now from the buffer: others have written before an append.

        Raises:
            OSError: ESTALE after a conflict, which is over then. An errno in `Remote.hopeless`: the buffer is dropped.
                Another errno: the buffer is still dirty.
        """
        if not entry.dirty:
            return False
        assert entry.buffer is not None, f"node {entry.node} has nothing to store"
        key, differs = entry.key, False
        base = entry.base if entry.writers and not entry.local else entry.etag
        try:
            if entry.is_gone:
                raise oserror(errno.ESTALE, key)
            etag = self._put(entry, key, entry.buffer, base)
        except OSError as error:
            if error.errno in self._remote.hopeless:
                self._give_up(entry, error.errno)
            if error.errno != errno.ESTALE:
                raise
            found = None
            if not entry.is_gone and (entry.tried or entry.buffer.tail_from is None):
                found = self._remote.same(key, entry.buffer, entry.stamp)
            if found is None:
                found = self._append_again(entry, key)
                differs = found is not None
            if found is None:
                self._keep_beside(entry, key)
                raise oserror(errno.ESTALE, key) from None
            etag = found
        with self._tree.lock:
            entry.dirty = False
            self._is_stored(entry, etag)
        return differs

    def _put(self, entry: Entry, key: str, buffer: Buffer, base: Etag | None) -> Etag | None:
        """`Remote.put` of a file's new bytes."""
        try:
            return self._remote.put(key, buffer, entry.stamp, over=base, create=entry.local)
        except OSError as error:
            entry.tried = entry.tried or error.errno != errno.ESTALE
            raise

    def _is_stored(self, entry: Entry, etag: Etag | None) -> None:
        """The remote has these bytes now, under this ETag."""
        entry.etag = entry.base = etag
        entry.seen = OWN
        entry.stamped = True
        self._tree.stored(entry)

    def _give_up(self, entry: Entry, error: int) -> None:
        """Drop the buffer of a file. A new file that was never stored loses its name."""
        with self._tree.lock:
            self._lose(entry, error)
            if entry.local:
                self._tree.unlinked(entry)

    def _lose(self, entry: Entry, error: int) -> None:
        """What was written will not be stored in the file: that is told to each close and fsync as long as it is open,
        for the first close may be that of a forked child that executes a program, which nobody hears of. What the
        remote has instead is not known."""
        entry.lost = error if entry.opens else 0
        entry.dirty = entry.stamped = False
        entry.seen = entry.etag = entry.base = None
        entry.version += 1
        entry.drop_content()
        self._tree.expire()

    def _append_again(self, entry: Entry, key: str) -> Etag | None:
        """Append the buffer's new end to the current file. None unless the buffer was only appended to."""
        buffer = entry.buffer
        assert buffer is not None
        if buffer.tail_from is None or entry.local or entry.is_gone or not self._remote.abilities.conditional:
            return None
        for _ in range(ATTEMPTS):
            head = self._remote.head(key)
            if head is None:
                return None
            try:
                there = self._remote.load(key, head.etag) if head.content is None else (head.content,)
                theirs = Buffer.of(chain(there, buffer.pieces(buffer.tail_from)))
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.ENOENT):
                    raise
                continue
            try:
                etag = self._put(entry, key, theirs, head.etag)
            except OSError as error:
                if error.errno in (errno.ESTALE, errno.ENOENT):
                    theirs.close()
                    continue
                # It may have arrived: what is tried again must hold their bytes too.
                self._adopt(entry, theirs)
                entry.etag = entry.base = head.etag
                theirs.tail_from = head.size
                raise
            self._adopt(entry, theirs)
            return etag
        return None

    def _adopt(self, entry: Entry, theirs: Buffer) -> None:
        """Have the current file with our end as the buffer."""
        with self._tree.lock:
            entry.drop_content()
            entry.buffer = theirs
            entry.resize(theirs.size)
            entry.touch()

    def _keep_beside(self, entry: Entry, key: str) -> None:
        assert entry.buffer is not None
        if entry.buffer.size:
            beside = conflict_path(AgentPath("/" + key))
            self._remote.put(beside[1:], entry.buffer, entry.stamp, over=None, create=True)
            log.error("%s: /%s was changed by others; what was written here is in %s", self._remote.name, key, beside)
        with self._tree.lock:
            self._lose(entry, errno.ESTALE)
            if entry.local and not entry.gone:
                self._tree.detach(entry)
            entry.local = False


def _writes_anywhere(flags: int) -> bool:
    return flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND
