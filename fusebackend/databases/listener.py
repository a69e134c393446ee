"""`Listener`: a thread and a connection that receive PostgreSQL's notifications (LISTEN and NOTIFY).

While the connection is lost no notification arrives, and after it anything may have changed; the receiver is called at
both moments. The listener connects again at once, and then after longer and longer random pauses, so that a thousand
hosts do not come back to a server at the same moment. A silent connection is probed every `PING_S`; without an answer
it counts as lost.

The connection serves for more than notifications, so that a host that is idle needs no other: `run` calls a function
with it in the listener's thread, and `turn` lets the receiver ask the server when something is due.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg import Connection

from fusebackend.base.deadline import is_readable
from fusebackend.databases.pipeline import Rows, Statement, is_lost, send
from fusebackend.databases.postgres import connect, pause_s

log = logging.getLogger(__name__)

PING_S = 5.0
"""How often a silent connection is probed, and how long the server has for the answer."""

RETRY_S = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the attempts to connect again (`pause_s`)."""

JOB_S = 5.0
"""How long after its first loss of the connection a job is tried again, when the connection is there."""

SETTLED_S = 5.0
"""A connection that was lost earlier than this after it was made does not begin the pauses anew."""

T = TypeVar("T")

Ask: TypeAlias = Callable[[Statement], Rows]
"""Returns the rows of a statement; psycopg's error when that fails or the server is silent for `PING_S`."""


class Receiver(Protocol):
    """The callbacks of a listener, all called in its thread, but for the first `prepare`."""

    def prepare(self, connection: Connection[Any]) -> None:
        """A new connection is about to listen, and may be queried first. An error closes it."""

    def heard(self, payload: str) -> None:
        """A notification has arrived."""

    def lost(self, error: BaseException) -> None:
        """The connection is lost: no notification arrives until `back`. Called once for each loss."""

    def back(self) -> None:
        """There is a connection again, and it listens."""

    def turn(self, ask: Ask) -> float:
        """Do what is due. Called after notifications, after `wake`, and in as many seconds as it returns."""


@dataclass
class _ListenerJob:
    future: Future[Any]
    work: Callable[[Connection[Any]], Any]
    until: float | None = None
    """When it is not tried again, once it has lost a connection."""


class Listener:
    """See the module's docstring.

    Attributes:
        live: no notification since it became true is missing.

    Raises:
        psycopg.Error: the constructor connects, and that failed.
    """

    def __init__(self, conninfo: str, channel: str, receiver: Receiver, *, name: str) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._receiver = receiver
        self._name = name
        self._ended = False
        self._guard = threading.Lock()
        self._jobs: deque[_ListenerJob] = deque()
        self._socket = -1  # of the connection that listens
        connection = self._connect()
        self.live = True
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, args=[connection], name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Twice is once."""
        with self._guard:
            if self._ended:
                return
            self._ended = True
            os.eventfd_write(self._bell, 1)  # in the lock: the thread closes the bell when it ends
        if self._thread is not threading.current_thread():  # the garbage collector may run this in it
            self._thread.join()

    def wake(self) -> None:
        """Have the receiver's `turn` called. Any thread may call it, and it never waits."""
        with self._guard:
            if not self._ended:
                os.eventfd_write(self._bell, 1)

    def is_quiet(self) -> bool:
        """Whether the server has sent nothing that the thread has still to read, and has not hung up. Any thread may
        ask."""
        socket = self._socket
        return socket >= 0 and not is_readable(socket, 0)

    def run(self, work: Callable[[Connection[Any]], T]) -> T:
        """The result of `work`, called with the connection in the listener's thread; notifications wait meanwhile. It
        uses `pipeline` alone: methods of psycopg would take notifications for themselves.

        It is called again with a new connection if that was lost before or meanwhile, for `JOB_S`.

        Raises:
            psycopg.Error: the server's, or there is no connection.
        """
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        future: Future[T] = Future()
        with self._guard:
            if self._ended:
                raise psycopg.OperationalError("the connection was closed")
            self._jobs.append(_ListenerJob(future, work))
            os.eventfd_write(self._bell, 1)
        return future.result()

    def _connect(self) -> Connection[Any]:
        return connect(self._conninfo, self._set_up, application_name=self._name)

    def _set_up(self, connection: Connection[Any]) -> None:
        self._receiver.prepare(connection)
        send(connection, [(f"LISTEN {self._channel}", ())])

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self, connection: Connection[Any] | None) -> None:
        try:
            self._receive(connection)
        finally:  # whatever ended it: without the thread a job would wait for ever
            with self._guard:
                self._ended = True
                self._fail_jobs(psycopg.OperationalError("the connection was closed"))
                os.close(self._bell)

    def _receive(self, connection: Connection[Any] | None) -> None:
        """Receive until `close`, with a new connection after each loss."""
        attempts = 0
        connected_at = time.monotonic()
        while not self._ended:
            try:
                if connection is None:
                    connection = self._connect()
                    connected_at = time.monotonic()
                    self.live = True
                    self._receiver.back()
                self._listen(connection)
            except Exception as error:
                if not isinstance(error, psycopg.Error | OSError):  # of the receiver: without the thread no job ends
                    log.exception("the listener begins anew")
                if connection is None:
                    self._fail_jobs(error)
                elif time.monotonic() - connected_at >= SETTLED_S:
                    attempts = 0
                self._socket = -1
                _close(connection)
                connection = None
                if self.live and not self._ended:
                    self.live = False
                    self._receiver.lost(error)
                self._pause(attempts)
                attempts += 1
        _close(connection)

    def _pause(self, attempts: int) -> None:
        """Wait until the next attempt, or until there is work for a connection."""
        until = time.monotonic() + pause_s(RETRY_S, attempts)
        while not self._ended and not self._jobs and (left_s := until - time.monotonic()) > 0:
            if is_readable(self._bell, left_s):
                os.eventfd_read(self._bell)

    def _fail_jobs(self, error: BaseException) -> None:
        while self._jobs:
            self._jobs.popleft().future.set_exception(error)

    def _listen(self, connection: Connection[Any]) -> None:
        """Receive until `close` or an error. Waits by itself: psycopg would wait for a silent server."""
        pg = connection.pgconn
        self._socket = pg.socket
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(pg.socket, select.POLLIN)

        heard_at = time.monotonic()

        def ask(statement: Statement) -> Rows:
            nonlocal heard_at
            (rows,) = send(connection, [statement], stall_s=PING_S)
            heard_at = time.monotonic()
            return rows

        while not self._ended:
            if self._jobs:
                self._work_off(connection)
                heard_at = time.monotonic()
            self._deliver(connection)
            wait_s = self._receiver.turn(ask)
            if self._deliver(connection) or self._jobs:
                continue
            silent_s = time.monotonic() - heard_at
            if silent_s >= PING_S:
                ask(("SELECT 1", ()))
                continue
            ready = poll.poll(max(0.0, min(wait_s, PING_S - silent_s)) * 1000)
            for fd, _ in ready:
                if fd == pg.socket:
                    pg.consume_input()
                    heard_at = time.monotonic()
                else:
                    os.eventfd_read(self._bell)

    def _deliver(self, connection: Connection[Any]) -> bool:
        """Pass on the notifications that have arrived. Returns whether there were any."""
        found = False
        encoding = connection.info.encoding
        for notice in iter(connection.pgconn.notifies, None):
            found = True
            self._receiver.heard(notice.extra.decode(encoding, "replace"))
        return found

    def _work_off(self, connection: Connection[Any]) -> None:
        """Run the jobs. The loss of the connection is raised; the job is then run with the next one."""
        while self._jobs:
            job = self._jobs[0]
            try:
                result = job.work(connection)
            except BaseException as error:
                lost = isinstance(error, psycopg.Error) and is_lost(connection, error)
                if lost:
                    job.until = job.until or time.monotonic() + JOB_S
                    if time.monotonic() < job.until:
                        raise
                self._jobs.popleft().future.set_exception(error)
                if lost:
                    raise
            else:
                self._jobs.popleft().future.set_result(result)


def _close(connection: Connection[Any] | None) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):  # it is lost anyway
            connection.close()
