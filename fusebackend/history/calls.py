"""`Calls`: the call that a change belongs to.

- In a verb, a command or another step of the server (`inside`): that one, by a context variable. Verbs and commands
  of one tool call, by the client's word for it (`Actor.call`), are one call until 2 s of quiet.
- A change by the kernel: that which a client has named for the process or one of its ancestors (`name`); else the
  command that runs in the pid namespace, or in the session, of the process (`started`); else that of the process
  session and the user, until it has changed nothing for `QUIET_S`. Unknown processes share a call for each user.

A call gets its number with its first change. Thread-safe; `current` takes 2 µs where the process is known.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from fusebackend.base.context import during
from fusebackend.base.recent import Recent
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.records import CallKind
from fusebackend.linux import proc
from fusebackend.protocol import Actor, current_actor
from fusebackend.vfs.calls import request

QUIET_S: Final = 2.0
"""A process session's call ends after so much time without a change."""

TOGETHER_S: Final = 0.1
"""Calls that may end within so short a time are ended together."""

LONGEST_S: Final = 3600.0
MOST_FILES: Final = 100_000
"""It ends after so long, or with so many files, in any case: a call is kept in memory while it goes on."""

LONGEST_TITLE: Final = 4096
"""Characters of a title in memory. The history keeps fewer, and masks them first: half a password shows none."""

MOST_NAMED: Final = 1000
"""Calls that clients have named and not ended."""


class OpenCall:
    """A call that goes on. `Calls` makes them.

    Attributes:
        id: by which a client that has named it ends it; empty for others.
        key: of a session or a tool call: what it is found by.
        number: 0 before its first change.
        files: how the files are recorded that it has changed, by volume (`VolumeRecords`) and node.
        is_shared: its changes may be those of several blocks of `inside`.
        is_stamped: what it has left is in its records, so that nobody looks once more when it ends.
    """

    __slots__ = (
        "actor", "began_s", "ended", "files", "id", "is_shared", "is_stamped", "key", "kind", "last_s", "number",
        "title", "undoes", "users",
    )  # fmt: skip

    def __init__(
        self, kind: CallKind, title: str, actor: Actor, undoes: Sequence[int] = (), key: Hashable = None
    ) -> None:
        self.kind = kind
        self.title = title[:LONGEST_TITLE]
        self.actor = actor
        self.undoes = undoes
        self.id = ""
        self.key = key
        self.number = 0
        self.users = 0
        self.began_s = self.last_s = 0.0
        self.ended = False
        self.is_shared = False
        self.is_stamped = False
        self.files: dict[Any, dict[int, int]] = {}


_inside: contextvars.ContextVar[OpenCall | None] = contextvars.ContextVar("fusebackend_call", default=None)


class Calls:
    """See the module's docstring.

    Args:
        history: takes the calls.
        ending: called with each call that has changed something, before it ends, in the thread that ends it.
        monotonic_s: the clock.
    """

    def __init__(
        self,
        history: HistoryFile,
        ending: Callable[[OpenCall], None] = lambda call: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._ending = ending
        self._now_s = monotonic_s
        self.processes = Processes()
        self._server = Actor(uid=os.geteuid(), pid=os.getpid())
        self._guard = threading.Lock()
        self._quiet: dict[Hashable, OpenCall] = {}  # those that end when they were quiet: of sessions and tools
        self._commands: dict[tuple[str, int], OpenCall] = {}  # by the pid namespace or the session of their processes
        self._named: dict[OpenCall, tuple[int, int]] = {}  # → (pid, began) that it is named for; the newest last
        self._found: Recent[tuple[int, int], OpenCall | None] = Recent(MOST_NAMED)  # process → its named call
        self._late: list[OpenCall] = []  # with a first change after their end
        self._running: Counter[OpenCall] = Counter()  # blocks of `inside` that have not ended, but for commands
        self.opened = threading.Event()
        """Set while there may be calls for `end_quiet`."""

    # -- which call ------------------------------------------------------------------------------------------------

    def current(self) -> OpenCall:
        """Return the call of a change that this thread or task is about to make. The request keeps its process, for the
        requests that will follow on its behalf: by then the process may have ended, and its id be another's."""
        call = _inside.get()
        if call is not None:
            return call
        asked = request.current()
        if asked.author is request.UNSEEN:
            asked.author = self.processes.of(asked.thread)
        return self.of_process(asked.author, asked.uid)

    def of_process(self, process: Process | None, uid: int) -> OpenCall:
        """Return the call of a process; None for an unknown one."""
        call, now_s = None, self._now_s()
        if process is not None and (self._commands or self._named):
            call = self._given(process)
        if call is None:
            key: Hashable
            if process is None:
                key = ("uid", uid)
            elif process.session:
                key = (process.session, process.namespace, process.uid)  # `sudo` and `su` keep their session
            else:
                key = (process.pid, process.began, "process")
            call = self._quiet.get(key)
            if call is None or now_s - call.last_s > QUIET_S:
                call = self._in_session(key, process, uid, now_s)
        call.last_s = now_s
        return call

    def _given(self, process: Process) -> OpenCall | None:
        if self._named:
            named = self._named_for(process)
            if named is not None:
                return named
        confined = self._commands.get(("namespace", process.namespace))
        return confined or self._commands.get(("session", process.session))

    def _named_for(self, process: Process) -> OpenCall | None:
        key = (process.pid, process.began)
        with self._guard:
            if key in self._found:
                return self._found[key]
            newest = {named: call for call, named in self._named.items()}
            above = (newest[each] for each in ancestors(process) if each in newest)
            found = self._found[key] = next(above, None)
            return found

    def _in_session(self, key: Hashable, process: Process | None, uid: int, now_s: float) -> OpenCall:
        """Return the call of a session that had none, or was quiet: a new one, unless another thread was first."""
        with self._guard:
            call = self._quiet.get(key)
            if call is None or now_s - call.last_s > QUIET_S:
                if call is not None:
                    self._late.append(call)  # `end_quiet` ends it
                if process is None:
                    call = OpenCall("session", "a process that is not known", Actor(uid=uid), key=key)
                else:
                    actor = Actor(command=process.command, uid=process.uid, pid=process.pid)
                    call = OpenCall("session", process.command, actor, key=key)
                call.began_s = now_s
                self._quiet[key] = call
            return call

    # -- the server's own ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(
        self, kind: CallKind, title: str, actor: Actor | None = None, undoes: Sequence[int] = ()
    ) -> Iterator[OpenCall]:
        """Make the changes of this thread in the block one call, which ends with it. In another block, or with the name
        of a tool call (`Actor.call`), they belong to that one, unless this is an undo, a restore or a merge."""
        who = actor or current_actor(self._server)
        outer = _inside.get()
        own = kind not in ("verb", "command")
        if outer is not None and not own:
            outer.is_shared = True
            yield outer
            return
        call = self._tool(who, title) if who.call and not own else OpenCall(kind, title, who, undoes)
        counted = kind != "command"  # its processes change nothing any more once the mount is gone
        with self._guard:
            call.users += 1
            self._running[call] += counted
        try:
            with during(_inside, call):
                yield call
        finally:
            with self._guard:
                call.users -= 1
                self._running[call] -= counted
                if not self._running[call]:
                    del self._running[call]
                call.last_s = self._now_s()
            if call.kind != "tool":
                self.end(call)

    def _tool(self, actor: Actor, title: str) -> OpenCall:
        key = (actor.agent, actor.thread, actor.call)
        with self._guard:
            call = self._quiet.get(key)
            if call is None:
                call = self._quiet[key] = OpenCall("tool", title, actor, key=key)
            call.last_s = self._now_s()
            call.is_shared = True
            return call

    def started(self, call: OpenCall, pid: int) -> Callable[[], None]:
        """Have the changes of a command's processes belong to a call, by its first process, before it starts others.
        Returns the function that ends that."""
        process = process_of(pid)
        if process is None:
            return lambda: None
        own = process.namespace in (0, self.processes.namespace)
        key = ("session", process.session) if own else ("namespace", process.namespace)
        if own and process.session != pid:
            return lambda: None  # it shares its session with others
        with self._guard:
            self._commands[key] = call

        def end() -> None:
            with self._guard:
                if self._commands.get(key) is call:
                    del self._commands[key]

        return end

    # -- named by clients ------------------------------------------------------------------------------------------

    def name(self, pid: int, title: str, actor: Actor, id: str) -> OpenCall:
        """Make the changes of a process and its descendants one call, until `end` or the next call that is named for
        it. A call of the same id ends.

        Args:
            id: for `named`.

        Raises:
            OSError: ESRCH, there is no such process.
        """
        process = process_of(pid)
        if process is None:
            raise OSError(errno.ESRCH, f"there is no process {pid} for which a call could be named")
        call = OpenCall("tool", title, replace(actor, uid=process.uid, pid=process.pid, command=process.command))
        call.id = id
        call.last_s = self._now_s()
        with self._guard:
            before = [each for each in self._named if each.id == id]
            self._named[call] = process.pid, process.began
            if len(self._named) > MOST_NAMED:
                oldest = next(iter(self._named))
                del self._named[oldest]
                self._late.append(oldest)
                self.opened.set()
            self._found.clear()
        for each in before:
            self.end(each)
        return call

    def named(self, id: str) -> OpenCall | None:
        """Return the call that was named with this id, or the present actor's tool call of this name in which nothing
        goes on; None if neither goes on."""
        actor = current_actor(self._server)
        with self._guard:
            named = [call for call in self._named if call.id == id]
            tool = self._quiet.get((actor.agent, actor.thread, id))
        return named[-1] if named else None if tool is None or tool.users else tool

    # -- ends ------------------------------------------------------------------------------------------------------

    def number(self, call: OpenCall) -> int:
        """Return the number of a call, which is about to change something."""
        if call.number == 0:
            with self._guard:
                if call.number == 0:
                    call.number = self._history.open_call(call.kind, call.title, call.actor, call.undoes)
                    if call.ended:
                        self._late.append(call)
                    if call.ended or call.key is not None:
                        self.opened.set()
        return call.number

    def end(self, call: OpenCall) -> None:
        """End a call. Its pending changes are stamped. Twice is once."""
        with self._guard:
            call.ended = True
            if self._named.pop(call, None) is not None:
                self._found.clear()
            if self._quiet.get(call.key) is call:
                del self._quiet[call.key]
        if call.number:
            self._ending(call)
            self._history.end_call(call.number)

    def open(self) -> list[OpenCall]:
        """Return the calls that go on and have changed something."""
        with self._guard:
            found = [*self._quiet.values(), *self._commands.values(), *self._named]
        return [call for call in dict.fromkeys(found) if call.number and not call.ended]

    def running(self) -> list[OpenCall]:
        """Return the calls that are making something in this process, but for commands."""
        with self._guard:
            return [call for call, blocks in self._running.items() if blocks]

    def end_quiet(self) -> float:
        """End the calls of process sessions and of tools that were quiet for long enough. Called now and then; returns
        the seconds after which the next one may be."""
        now_s = self._now_s()
        with self._guard:
            over = self._late
            self._late = []
            for call in tuple(self._quiet.values()):
                is_long = call.kind == "session" and now_s - call.began_s > LONGEST_S
                is_large = call.kind == "session" and sum(map(len, tuple(call.files.values()))) > MOST_FILES
                if not call.users and (now_s - call.last_s > QUIET_S or is_long or is_large):
                    del self._quiet[call.key]
                    over.append(call)
            if not self._quiet:
                self.opened.clear()
            next_s = min((call.last_s for call in self._quiet.values() if not call.users), default=now_s) + QUIET_S
        for call in over:
            self.end(call)
        return max(next_s - now_s, TOGETHER_S)

    def close(self) -> None:
        """End all calls."""
        with self._guard:
            over = [*self._quiet.values(), *self._late, *self._named]
        for call in over:
            self.end(call)
        self.processes.close()


# -- processes ---------------------------------------------------------------------------------------------------

MOST_KEPT: Final = 64
"""Threads whose process is known."""

DEEPEST: Final = 64
"""Ancestors that are looked at."""

_PIDFD_THREAD: Final = os.O_EXCL
"""In <linux/pidfd.h>."""

_COMMAND_BYTES: Final = 200

_FIELDS: Final = (b"Tgid", b"Uid", b"Threads")
"""Of proc_pid_status(5). To tell all sixty apart takes 15 us more."""


class Process(NamedTuple):
    """A process, as /proc shows it."""

    pid: int
    began: int
    """In clock ticks since the boot; with `pid` it is no other process of this boot."""
    parent: int
    session: int
    """The pid of the session's leader; 0 if that is outside of the server's pid namespace."""
    uid: int
    namespace: int
    """The inode of its pid namespace; 0 if this process may not see it."""
    command: str
    """Its command line; the name of its program if it has several threads."""


class _Kept(NamedTuple):
    """A process with the descriptor of the thread that was asked for."""

    process: Process
    descriptor: int


class Processes:
    """The process that a FUSE request comes from, by its thread.

    The kernel gives the id of the thread that made the request, in the server's pid namespace, and 0 for a thread
    outside of it: that process is not known, and taken for no other. An id is given to another thread once its own has
    ended, so the answer of /proc is kept with a descriptor of the thread (`pidfd_open` with PIDFD_THREAD, Linux 6.9),
    which is asked before use: 0.3 µs, against 40 µs of /proc. Where the kernel has none, only leaders of processes are
    kept. `MOST_KEPT` are, since each takes a descriptor. Thread-safe.
    """

    def __init__(self) -> None:
        self._kept: Recent[int, _Kept] = Recent(MOST_KEPT, _close)
        self._guard = threading.Lock()
        own = process_of(os.getpid())
        self.namespace = 0 if own is None else own.namespace
        """The inode of the server's pid namespace."""

    def of(self, thread: int) -> Process | None:
        """Return the process of a thread; None for 0, and for a thread that has ended or that /proc hides."""
        if thread <= 0:
            return None
        with self._guard:
            kept = self._kept.get(thread)
            if kept is not None:
                if _has_its_id(kept.descriptor):
                    return kept.process
                _close(self._kept.pop(thread))
            descriptor = None
            for flags in (_PIDFD_THREAD, 0):
                with contextlib.suppress(OSError):
                    descriptor = os.pidfd_open(thread, flags)
                    break
            process = process_of(thread)
            if descriptor is None:
                return process
            if process is None or not _has_its_id(descriptor):  # /proc may have shown another thread
                os.close(descriptor)
                return None
            self._kept[thread] = _Kept(process, descriptor)
            return process

    def close(self) -> None:
        with self._guard:
            while self._kept:
                _close(self._kept.popitem()[1])


def _close(kept: _Kept) -> None:
    os.close(kept.descriptor)


def _has_its_id(descriptor: int) -> bool:
    """Return True for a thread that goes on, or that its parent has not waited for: no other one can have its id.

    The signal 0 says so. poll(2) takes twice as long, and Python lets go of its lock for it: with another thread at
    work, as that of the history, each change then took some µs more."""
    try:
        signal.pidfd_send_signal(descriptor, 0)
        return True
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's, or there is no such system call
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        return not end.poll(0)


def process_of(thread: int) -> Process | None:
    """Return what /proc shows of the process of a thread; None if it has ended.

    The kernel reads a command line from the process's memory, under its `mmap_lock`: another of its threads may hold
    that in a page fault that waits for this mount (`fuse_page_mkwrite`). So that of a process with one thread is read.
    """
    command, namespace = b"", 0
    try:
        status = proc.read(f"{thread}/status")
        leader, uids, threads = (status.partition(b"\n%b:" % name)[2].split(maxsplit=2) for name in _FIELDS)
        pid, uid = int(leader[0]), int(uids[1])
        name, _, rest = proc.read(f"{pid}/stat").rpartition(b")")
        words = rest.split()
        if int(threads[0]) == 1:
            command = proc.read(f"{pid}/cmdline", _COMMAND_BYTES).rstrip(b"\0").replace(b"\0", b" ")
    except (OSError, IndexError, ValueError):
        return None
    with contextlib.suppress(OSError):
        namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    text = (command or name.partition(b"(")[2]).decode("utf-8", "replace")
    return Process(pid, int(words[19]), int(words[1]), int(words[3]), uid, namespace, text)


def ancestors(process: Process) -> Iterator[tuple[int, int]]:
    """Yield (pid, began) of a process and of those above it, as far as they live."""
    yield process.pid, process.began
    parent = process.parent
    for _ in range(DEEPEST):
        if parent <= 1:
            return
        try:
            words = proc.stat(parent)
        except OSError:
            return
        yield parent, int(words[19])
        parent = int(words[1])
