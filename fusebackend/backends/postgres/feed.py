"""`VolumeFeed`: the changes that other hosts make in a volume, as this host's caches and watchers are notified of them.

Each transaction that changes something adds a row to the table `change` (`schema.py`), with the name of its session.
A reader's position is PostgreSQL's snapshot (`PgSnapshot`): it reads the rows that are visible now and were not
then. So a late commit is not skipped, and a transaction that stays open for hours delays no changes but its own. The
feed passes over its own session's rows.

A NOTIFY from outside the transactions says that there are rows to read. In a transaction it would make all commits of
the server wait for each other: PostgreSQL holds one lock from `PreCommit_Notify` (async.c) to the end of the commit. It
is sent after the commit by the session's connection, which does not wait for the disk: the first after a pause at once,
later ones `PAUSE_S` apart. Where a host dies between the two, its rows are found within `LOOK_S` by one of the
`WATCHERS`, which sends the wake-up.

Three hosts or more that change a volume all the time read its rows without being woken. A wake-up that soon follows
another says for how long (`busy`): each host then reads once a pause until that time is over, and sends no wake-up in
the first half of it. Otherwise 16 busy hosts wake each other 5,000 times a second, which halves their writes.

The volume says whether there is a feed (`Features.change_feed`): while there is one, each change of another session
arrives within milliseconds, and caches above need not expire. When the connection is lost, the volume says so and
invalidates everything, and once more when it is back. Watchers are then told of the rows after the position, unless the
server was restarted.

A payload is JSON, of ASCII whatever the encoding of the database: a list of [node, parent, name] with names in base64.

    [[17, null, null]]         the data or the attributes of node 17
    [[17, 1, "bm90ZXM="]]      the same, and the name `notes` in directory 1
    [[null, null, null]]       anything
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from psycopg import Connection

from fusebackend.backends.postgres import lease
from fusebackend.backends.postgres.lease import Lease
from fusebackend.backends.postgres.schema import keep_changes
from fusebackend.backends.postgres.statements import ALWAYS
from fusebackend.base import jitter
from fusebackend.databases.listener import Ask
from fusebackend.databases.pipeline import Statement, rows_of, send, transaction
from fusebackend.protocol import Change

# -- pg snapshot -------------------------------------------------------------------------------------------------
#
# `PgSnapshot`: which transactions were over at a moment, as PostgreSQL's `pg_snapshot` has it.
#
# Transactions get ascending numbers when they first write, and end in any order. So a number alone is no position in
# the order of commits: those below `xmin` were over, those from `xmax` on had not begun, and those in `running` were
# under way. What has become visible since is exactly what has a number from `xmax` on, or one in `running`.


class PgSnapshot(NamedTuple):
    """See the comment above."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """The value of a `pg_snapshot` such as `10:20:10,14`. ValueError if it is none."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether the transaction was over, as `pg_visible_in_snapshot`."""
        return xid < self.xmax and xid not in self.running

    def covers(self, other: PgSnapshot) -> bool:
        """Whether every transaction that was over in `other` was over here."""
        return self.xmax >= other.xmax and not any(other.sees(xid) for xid in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"


# -- the feed ----------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

PAYLOAD_BYTES: Final = 63_000
"""A transaction with more is announced as `Change()`: to invalidate everything is cheaper."""

PAUSE_S = 0.003
"""Between two wake-ups by this host, and between two reads that wake-ups ask for."""

SHARE_S = 0.0105
SHARES_S: Final = 0.16
"""The same for each session of the volume from the third on, and for all of them at most: up to 16 hosts read 100 times
a second together. A read takes 1 ms of a core, of the server and the host. A wake-up waits for a pause and a half at
most, and what follows a `busy` one for a pause until it is read: a quarter of a second."""

SOON: Final = 2
"""Pauses: a wake-up that follows another within them, or the time that a `busy` one said, is `busy`."""

READS: Final = 8
"""Pauses for which the hosts read without being woken. One that has heard of it late by half of them misses nothing."""

CROWD_S: Final = 0.0005
"""The same for each session, if that is longer: 2,000 reads a second of all hosts together."""

SPREAD: Final = 0.5
"""A host that has heard a wake-up waits for up to this part of the pause longer, so that few send the next."""

LOOK_S = 1.0
"""How often the first `WATCHERS` sessions read the rows without a wake-up; they wake the others if they find any."""

WATCHERS: Final = 2
"""Of a volume, by their numbers: two, for the host that dies before its wake-up may be a watcher itself."""

IDLE_S = 5.0
"""How often the rows are read by all other sessions, and by the only one. It also finds out that a server is silent."""

ALONE_PAUSE_S = 1.0
"""How often the only session looks whether it has company."""

KEEP_S = 60.0
"""How long rows are kept."""

SWEPT_AT_ONCE: Final = 2_000
"""Rows that are deleted by one statement."""

MAX_ROWS: Final = 5_000
"""A reader that finds more invalidates everything."""

SURVEY_S = 29.0
"""How often the sessions that have the volume open are counted, together with the next reading of the rows."""

MAX_UNPUBLISHED: Final = 1_000
"""Transactions whose changes wait to be published; more are `Change()`."""

NOTHING: Final = PgSnapshot(1, 1, frozenset())
NO_XID: Final = 1 << 63
"""No transaction has a number as high."""

_KEPT: Final = """
SELECT floor::text FROM fusebackend.change_kept
WHERE volume = %s::int AND at <= now() - interval '5 s' FOR UPDATE SKIP LOCKED
"""
_DELETE: Final = f"""
WITH gone AS (
    DELETE FROM fusebackend.change WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM fusebackend.change WHERE volume = %s::int AND xid < %s::text::xid8
        AND pg_visible_in_snapshot(xid, %s::text::pg_snapshot) LIMIT {SWEPT_AT_ONCE}
    )) RETURNING 1
), counted AS (SELECT count(*) = {SWEPT_AT_ONCE} AS more FROM gone)
UPDATE fusebackend.change_kept SET floor = %s::text::pg_snapshot, at = CASE WHEN more THEN at ELSE now() END
FROM counted WHERE volume = %s::int RETURNING more
"""
"""Rows may be left that `floor` says are gone."""
IS_OLD: Final = f"""
(SELECT at < now() - interval '{KEEP_S} s' FROM fusebackend.change WHERE volume = %s ORDER BY xid LIMIT 1)
"""

_LOOK: Final = f"""
SELECT pg_current_snapshot()::text, k.floor::text, c.payload,
    extract(epoch FROM clock_timestamp() - c.at)::float8
FROM (VALUES (1)) one
LEFT JOIN fusebackend.change_kept k ON k.volume = %s::int
LEFT JOIN LATERAL (
    (SELECT payload, at FROM fusebackend.change WHERE volume = %s::int AND xid >= %s::text::xid8
        AND xid < pg_snapshot_xmax(pg_current_snapshot()) AND session <> %s::int LIMIT {MAX_ROWS + 1})
    UNION ALL
    (SELECT payload, at FROM fusebackend.change WHERE volume = %s::int AND xid = ANY(%s::text[]::xid8[])
        AND session <> %s::int)
) c ON true
"""
"""The rows after a position. Numbers from the next one on are of another server, whose tables were restored here."""
_TELL: Final = """
SELECT others, CASE WHEN others > 0 THEN pg_notify(%s::text,
    CASE WHEN others > 1 AND for_ms > 0 THEN 'busy ' || own || ' ' || for_ms ELSE 'wake ' || own END)::text END
FROM (VALUES (%s::int, %s::int)) asked (own, for_ms), LATERAL (
    SELECT count(*) AS others FROM fusebackend.session WHERE volume = %s::int AND id <> own
) sessions
"""
"""`for_ms`: for how long all hosts read by themselves."""
_SERVER: Final = """
SELECT k.incarnation || ' ' || pg_postmaster_start_time(),
    count(s.id), count(*) FILTER (WHERE s.id < %s::int AND s.missing_since IS NULL)
FROM fusebackend.change_kept k LEFT JOIN fusebackend.session s ON s.volume = k.volume AND s.id <> %s::int
WHERE k.volume = %s::int
GROUP BY k.volume, k.incarnation
"""


def channel(volume_id: int) -> str:
    """The channel of a volume's wake-ups."""
    return f"fusebackend_{volume_id}"


def hello(volume_id: int, session: int) -> Statement:
    """The statement that tells the others of a new session: from now on they send wake-ups."""
    return "SELECT pg_notify(%s, %s)", (channel(volume_id), f"hello {session}")


def row(volume_id: int, session: int, payload: str) -> Statement:
    """The statement that adds the changes of a transaction to it."""
    columns = "fusebackend.change (volume, session, payload)"
    query = f"INSERT INTO {columns} SELECT %s::int, %s::int, %s::text {ALWAYS}"
    return query, (volume_id, session, payload)


def encode(changes: Sequence[Change]) -> str:
    """The payload of these changes, in their order and without repetitions; empty for none."""
    told = list(dict.fromkeys((change.node, change.parent, change.name) for change in changes))
    payload = msgspec.json.encode(told).decode() if told else ""
    return payload if len(payload) <= PAYLOAD_BYTES else encode([Change()])


def decode(payloads: Iterable[str]) -> list[Change]:
    """The changes of payloads, in their order and without repetitions. One that is not from `encode` is anything."""
    told: dict[_Told, None] = {}
    for payload in payloads:
        try:
            told.update(dict.fromkeys(msgspec.json.decode(payload, type=list[_Told])))
        except msgspec.DecodeError:
            told[None, None, None] = None
    return [Change(*each) for each in told]


def _tell_ages(on_delay: Callable[[float], None], read_at: float, ages_s: Sequence[float]) -> None:
    """Tell how old changes are that were so old when their rows were read."""
    waited_s = time.monotonic() - read_at
    for age_s in ages_s:
        on_delay(max(0.0, age_s) + waited_s)


_Told: TypeAlias = tuple[int | None, int | None, bytes | None]
"""The node, directory and name of a `Change`."""


class VolumeFeed:
    """See the module's docstring. `announce` may be called by any thread; most else by the thread of its connection.

    A thread of its own publishes. A notice to the kernel may wait for a request, and that for the connection: `create`
    holds the kernel's lock of its directory while it gets a block of node numbers (`HostSession.new_node`).

    Args:
        volume_id: the volume's number in the database.
        changed: is called with the changes of other sessions.
        became: is called with whether there is a feed, before `changed`, when the connection is lost or back.

    Attributes:
        live: whether changes of other sessions arrive.
        session: the number of this process's session.
        register: registers the session with a new connection.
        wake: has `turn` called soon.
        is_quiet: whether all that the connection has for its thread has been read.
        on_delay: is called for each change of another session, after it was told of here, with the seconds since its
            transaction began, by the server's clock.
        leads: whether this session is among the first `WATCHERS`, which do what one of all has to do.
        lease: held while there is no other session.
    """

    def __init__(
        self, volume_id: int, changed: Callable[[Sequence[Change]], object], became: Callable[[bool], object]
    ) -> None:
        self._changed = changed
        self._became = became
        self.live = True
        self.session = 0
        self.wake: Callable[[], None] = lambda: None
        self.register: Callable[[Connection[Any]], None] = lambda connection: None
        self.is_quiet: Callable[[], bool] = lambda: True
        self.lease = Lease(volume_id, lambda: self.wake(), lambda: self.is_quiet())
        self._volume = volume_id
        self.on_delay: Callable[[float], None] | None = None
        self._published: queue.Queue[Callable[[], object] | None] = queue.Queue()  # None ends the thread
        self._publisher: threading.Thread | None = None
        self._guard = threading.Lock()
        self._is_due = False  # a transaction since the last wake-up needs one
        self._told_at = self._looked_at = self._surveyed_at = -SURVEY_S  # told by any session
        self._told_until = self._reads_until = -SURVEY_S  # all hosts read until then by themselves; this one does
        self._reads_each_s = 0.0
        self._called = False  # a wake-up has come
        self._overflown = False  # changes were dropped, and a `Change()` follows
        self._is_back = False  # the connection is new, and the position of an earlier one
        self.leads = True
        self._others = 1  # other sessions, as far as is known
        self._position = NOTHING
        self._floor = ""
        self._server = ""  # another one after each start
        self._past: deque[tuple[float, PgSnapshot]] = deque()  # earlier positions

    def prepare(self, connection: Connection[Any]) -> None:
        """A new connection: the session is registered, it has the statements, and the volume has its row."""
        self.register(connection)
        settings = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
        plans = [("SELECT set_config(%s, %s, false)", setting) for setting in settings.items()]
        send(connection, [*plans, keep_changes(self._volume)])
        self._is_back = True

    def start(self, connection: Connection[Any]) -> None:
        """Publish what is changed from now on."""
        self._server, self._position = "", NOTHING
        self._return(lambda statement: rows_of(connection, *statement))
        self._publisher = threading.Thread(target=self._work, name="fusebackend-changes", daemon=True)
        self._publisher.start()

    def stop(self) -> None:
        """Call nothing any more, once the callback that is under way has returned. Twice is once."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self._published.put(None)
            if publisher is not threading.current_thread():
                publisher.join()

    def announce(self) -> None:
        """Send other hosts a wake-up for the row that a transaction of this session has added."""
        with self._guard:
            was_due = self._is_due
            self._is_due = was_due or time.monotonic() >= self._told_until
        if self._is_due and not was_due:
            self.wake()

    # -- the connection's thread -------------------------------------------------------------------------------

    def heard(self, payload: str) -> None:
        word, _, rest = payload.partition(" ")
        session, _, for_ms = rest.partition(" ")
        if session == str(self.session):
            return
        self.lease.end()
        self._called = True
        self._others = max(1, self._others)
        if word == "hello":
            self._surveyed_at = -SURVEY_S
        elif word in ("wake", "busy") and self._others > 1:
            self._told_at = time.monotonic() + jitter.between(0, SPREAD * self._pause_s)
        if word == "busy":
            with contextlib.suppress(ValueError):  # not from us: any role of the database may send one
                self._read_by_themselves(int(for_ms) / 1000)

    def _read_by_themselves(self, for_s: float) -> None:
        """All hosts read the rows for so long, and so find what is committed in the first half of that."""
        now = time.monotonic()
        with self._guard:
            self._told_until = now + for_s / 2 + jitter.between(0, SPREAD * self._pause_s)
            self._is_due = False
        self._reads_until = max(self._reads_until, now + for_s)
        self._reads_each_s = for_s / READS

    def lost(self, error: BaseException) -> None:
        words = " ".join(str(error).split())
        log.warning("what other hosts change in the volume is not told until the connection is back: %s", words)
        self.lease.lost()
        self.live = False
        self._put(partial(self._became, False))
        self._publish([Change()])

    def back(self) -> None:
        log.info("what other hosts change in the volume is told again")
        self.live = True
        self._put(partial(self._became, True))

    def turn(self, ask: Ask) -> float:
        """Send the wake-up and read the rows that are due. Returns the seconds until the next is."""
        if self._is_back:
            self._return(ask)
        self._turn_lease(ask)
        if self._is_due and time.monotonic() >= self._tell_at:
            self._tell(ask)
        if time.monotonic() >= self._look_at:
            self._look(ask)
            if self._looked_at >= self._surveyed_at + SURVEY_S:
                self._survey(ask)
        due_at = min(self._look_at, self._tell_at) if self._is_due else self._look_at
        return due_at - time.monotonic()

    def _turn_lease(self, ask: Ask) -> None:
        if self.lease.is_over:
            self.lease.give_back(ask)
        if self.lease.take(self.session, ask):
            if self.lease.drops:
                self._publish([Change()])
            self._look(ask)
            self._put(self.lease.beginning())

    @property
    def _pause_s(self) -> float:
        return max(PAUSE_S, min(SHARE_S * (self._others - 1), SHARES_S), CROWD_S * self._others)

    @property
    def _tell_at(self) -> float:
        return self._told_at + (self._pause_s if self._others else ALONE_PAUSE_S)

    @property
    def _look_at(self) -> float:
        if self._called:
            return self._looked_at + self._pause_s
        if self._looked_at < self._reads_until:
            return self._looked_at + max(self._pause_s, self._reads_each_s)
        return self._looked_at + (LOOK_S if self.leads and self._others else IDLE_S)

    def _tell(self, ask: Ask) -> None:
        with self._guard:
            self._is_due = False  # first: what is announced from now on needs another one
        sent_at, pause_s = time.monotonic(), self._pause_s
        is_busy = sent_at < max(self._told_at, self._told_until) + SOON * pause_s
        for_ms = round(READS * pause_s * 1000) if is_busy else 0
        try:
            ((self._others, _),) = ask((_TELL, (channel(self._volume), self.session, for_ms, self._volume)))
        except BaseException:
            self._is_due = True  # the next connection tells
            raise
        self._told_at = time.monotonic()
        if for_ms and self._others > 1:
            self._read_by_themselves(for_ms / 1000 - (self._told_at - sent_at))

    def _look(self, ask: Ask) -> None:
        """Read the rows after the position, publish them and move it."""
        called, self._called = self._called or time.monotonic() < self._told_until, False
        before = self._position
        running = [str(xid) for xid in before.running]
        after = before.xmax if before is not NOTHING else NO_XID
        volume, own = self._volume, self.session
        sent_at = lease.now_s()
        rows = ask((_LOOK, (volume, volume, str(after), own, volume, running, own)))
        self._looked_at = time.monotonic()
        self.lease.answered(sent_at)
        now, floor = PgSnapshot.parse(rows[0][0]), rows[0][1] or ""
        self._position = now
        if before is NOTHING:
            return
        if not self._past or self._looked_at - self._past[-1][0] >= KEEP_S / 4:
            self._past.append((self._looked_at, now))
        found = [(payload, age_s) for _, _, payload, age_s in rows if payload is not None]
        payloads = [payload for payload, _ in found]
        if floor != self._floor:
            self._floor = floor
            if not before.covers(PgSnapshot.parse(floor)):
                self._publish([Change()])
                return
        if len(payloads) > MAX_ROWS:
            self._publish([Change()])
        elif payloads:
            self._publish(decode(payloads))
        if payloads and self.on_delay is not None:
            self._put(partial(_tell_ages, self.on_delay, self._looked_at, [age_s for _, age_s in found]))
        if payloads and not called and self.leads:
            self.announce()

    def _survey(self, ask: Ask) -> str:
        """Count the sessions of this volume. Returns the name of the server."""
        ((server, self._others, before),) = ask((_SERVER, (self.session, self.session, self._volume)))
        self._surveyed_at = time.monotonic()
        if self._others:  # that has not said hello yet: the lock must not be given back before the lease has ended
            self.lease.end()
        else:
            self.lease.is_alone = True
        self.leads = before < WATCHERS
        return str(server)

    def _return(self, ask: Ask) -> None:
        """Read on with a new connection, and invalidate everything, after which the mount follows the feed again.

        Where rows may be missing, as a crash of the server has emptied the table, the position is that of now.
        """
        server, self._server = self._server, self._survey(ask)
        if self._server != server:
            self._position = NOTHING
        self._look(ask)
        self._publish([Change()])
        if self._others > 1:  # they may be reading by themselves, and send no wake-ups
            self._reads_until = time.monotonic() + READS * max(SHARES_S, self._pause_s)
        self._is_back = False

    def _publish(self, changes: Sequence[Change]) -> None:
        if self._published.qsize() < MAX_UNPUBLISHED:
            self._put(partial(self._changed, changes))
        elif not self._overflown:
            self._overflown = True
            self._put(partial(self._changed, [Change()]))

    def _put(self, tell: Callable[[], object]) -> None:
        """Have it called after those before it."""
        if self._publisher is not None:
            self._published.put(tell)

    def _work(self) -> None:
        """Publish until `stop`."""
        while (tell := self._published.get()) is not None and self._publisher is not None:
            self._overflown = False  # first: what is dropped from now on is followed by another `Change()`
            try:
                tell()
            except Exception:  # later changes must still be announced
                log.exception("could not tell of a change")
            self._published.task_done()

    # -- rows that are old -------------------------------------------------------------------------------------

    def sweep(self, connection: Connection[Any]) -> bool:
        """Delete rows that every reader had `KEEP_S` for. Returns whether there may be more of them.

        Age is that of a snapshot which saw them, not that of the row: a transaction may have been open for longer.
        """
        now = time.monotonic()
        while len(self._past) > 1 and self._past[1][0] <= now - KEEP_S:
            self._past.popleft()
        if not self._past or self._past[0][0] > now - KEEP_S:
            return False
        old = self._past[0][1]
        with transaction(connection):
            rows = rows_of(connection, _KEPT, (self._volume,))
            if not rows or not old.covers(PgSnapshot.parse(rows[0][0])):  # another host does it, or has just done so
                return False
            ((more,),) = rows_of(connection, _DELETE, (self._volume, str(old.xmax), str(old), str(old), self._volume))
            return bool(more)
