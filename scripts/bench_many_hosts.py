"""The benchmark of many hosts on one PostgreSQL: 1, 4, 16 and 64 processes, each with a backend of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import recorded_sql
from bench_hosts import far_away
from driver import Run, benchmark, markdown, numbers, only, option, positive, words_of
from services import postgres, slow_fsync
from serving import Server, our_mount
from work import FORK, drop_caches, percentile, processes

from fusebackend.backends import PostgresBackend
from fusebackend.protocol import ROOT_NODE, Caller

PROCESSES = (1, 4, 16, 64)
SECONDS = 5

TEXT = ("an agent's note of 240 bytes, " * 8)[:240]
MARK = "turn 000000000000"
"""An edit counts it up, so that a file stays as long as it is."""

READ_FILES = 20
READS_OF_TEN = 9
WARM_UP = 3

SLOW_FSYNC_S = 0.005
DELAYS_MS = (1, 10)
"""Of each way between host and server."""

CONNECTIONS = 100
"""`max_connections` of the server: PostgreSQL's default."""

MOUNTS = 64
IDLE_S = 20.0
BURST = 10_000
WATCHED_FILES = 100

OPEN_LIMIT_S = 45.0
WORK_LIMIT_S = 300.0
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
ME = Caller(0, 0)

RECORDED_BLOCK = 7_654_321_000_192
"""Numbers of nodes begin here: a node is then no part of another number in the recorded SQL."""


# -- what a process does -------------------------------------------------------------------------------------------


class Work:
    """The operations of one process, in its directory of a volume. No two of them use the same names."""

    def __init__(self, backend: PostgresBackend, directory: str, number: int) -> None:
        self._backend = backend
        self._volume = backend.volume
        self._directory = directory
        self._tag = f"{os.getpid():08}{number:03}"
        self._turn = 0

    def prepare(self) -> None:
        """Make the directory and the files that are read and edited."""
        for number in range(READ_FILES):
            _require(self._backend.write(f"{self._directory}/r{self._tag}-{number}", TEXT))
        _require(self._backend.write(self._edited, f"{MARK} {TEXT[len(MARK) + 1 :]}"))
        self._node = self._volume.lookup(ROOT_NODE, self._directory[1:].encode()).node

    @property
    def _edited(self) -> str:
        return f"{self._directory}/e{self._tag}"

    def name(self, number: int) -> str:
        """Return the name of a new file."""
        return f"f{self._tag}{number:08}"

    def write(self, number: int) -> None:
        _require(self._backend.write(f"{self._directory}/{self.name(number)}", TEXT))

    def read(self, number: int) -> None:
        _require(self._backend.read(f"{self._directory}/r{self._tag}-{number % READ_FILES}"))

    def edit(self, number: int) -> None:
        old, new = (f"turn {turn:012}" for turn in (self._turn, self._turn + 1))
        _require(self._backend.edit(self._edited, old, new))
        self._turn += 1

    def mixed(self, number: int) -> None:
        (self.edit if number % 10 >= READS_OF_TEN else self.read)(number)

    def file(self, number: int) -> None:
        """Do what the kernel asks for when a program makes a file of 240 bytes."""
        node = self._volume.create(self._node, self.name(number).encode(), 0o644, FLAGS, ME).node
        try:
            self._volume.write(node, 0, TEXT.encode())
        finally:
            self._volume.release(node, FLAGS)

    def made(self, number: int) -> tuple[int, bytes]:
        """Return the node and the name of the file that an operation has made."""
        name = self.name(number).encode()
        return self._volume.lookup(self._node, name).node, name


def _require(result: Any) -> None:
    if result.error is not None:
        raise OSError(str(result.error))


class Scenario(NamedTuple):
    """Which operation each process repeats, and where: `{}` is its number."""

    name: str
    operation: str
    volume: str
    directory: str
    makes_files: bool = True
    """Whether the operation makes a file, with a node and a name that pgbench replaces."""

    @property
    def replayed(self) -> tuple[tuple[str, int], ...]:
        """The operations that pgbench replays, with their weights."""
        if self.operation == "mixed":
            return ("read", READS_OF_TEN), ("edit", 10 - READS_OF_TEN)
        return ((self.operation, 1),)


SCENARIOS = {
    "own": Scenario("`write`, a volume each", "write", "host{}", "/d{}"),
    "shared": Scenario("`write`, one volume, a directory each", "write", "shared", "/d{}"),
    "hot": Scenario("`write`, one directory", "write", "shared", "/hot"),
    "edit": Scenario("`edit`, one volume, a file each", "edit", "shared", "/d{}", makes_files=False),
    "reads": Scenario("90 % `read`, 10 % `edit`, one volume", "mixed", "shared", "/d{}", makes_files=False),
    "kernel": Scenario("create, write, close; one volume", "file", "shared", "/d{}"),
}
MOST_ELSEWHERE = 16
"""Processes on the slow disk and far away."""

FAR_SCENARIOS = ("own", "shared", "reads")
SLOW_SCENARIOS = ("own", "shared")


# -- one line of the table -----------------------------------------------------------------------------------------


class Done(NamedTuple):
    """The result of one process. Times are in seconds; begin and end are monotonic."""

    began: float = 0.0
    ended: float = 0.0
    took: Sequence[float] = ()
    processor_s: float = 0.0
    failures: Sequence[str] = ()


@dataclass
class Cell:
    """One line: the results of all processes together."""

    place: str
    scenario: str
    processes: int
    rate: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    connections: int = 0
    server_cores: float = 0.0
    client_cores: float = 0.0
    replayed: float = 0.0
    failure: str = ""

    def row(self) -> list[str]:
        name = SCENARIOS[self.scenario].name
        if not self.rate:
            return [name, str(self.processes), "–", "", "", _number(self.replayed), "", "", "", self.failure]
        ratio = f"{self.rate / self.replayed:.2f}" if self.replayed else ""
        return [
            name, str(self.processes), _number(self.rate), f"{self.p50_s * 1000:.1f}", f"{self.p99_s * 1000:.1f}",
            _number(self.replayed), ratio, str(self.connections), f"{self.server_cores:.2f}, {self.client_cores:.2f}",
            self.failure,
        ]  # fmt: skip


HEADS = ["processes do", "of them", "operations/s", "p50 (ms)", "p99 (ms)", "`pgbench`, its SQL/s", "ratio",
         "connections", "cores of server, clients", "failed"]  # fmt: skip


def _number(value: float) -> str:
    return f"{value:,.0f}" if value else ""


Cells = dict[tuple[str, str, int], Cell]
"""By place (`fast`, `slow`, `1 ms` …), scenario, and number of processes."""


def together(scenario: Scenario, dsn: str, server: Server, count: int, seconds: float, cell: Cell) -> None:
    """Run processes at once, from a common start on."""
    with processes(count, partial(_work, scenario, dsn, seconds)) as (start, results):
        try:
            start.wait(OPEN_LIMIT_S)
        except threading.BrokenBarrierError:
            opened = results(OPEN_LIMIT_S)
            why = next((failure for failure in opened if failure), f"no answer in {OPEN_LIMIT_S:.0f} s")
            cell.failure = f"{count - opened.count('')} could not open the volume: {_short(why)}"
            return
        with most_connections(dsn) as counted:
            before, began = server.processor_s(), time.monotonic()
            with suppress(threading.BrokenBarrierError):  # one has failed
                start.wait(seconds + WORK_LIMIT_S)
            cell.server_cores = (server.processor_s() - before) / (time.monotonic() - began)
        cell.connections = counted[0]
        with suppress(threading.BrokenBarrierError):
            start.wait(1.0)  # the server's processes of their connections, whose time counts, may end
        done = results(WORK_LIMIT_S)
    if len(done) < count:
        raise SystemExit(f"{count - len(done)} of {count} processes have not done their work")
    summarise(cell, done)


def summarise(cell: Cell, done: Sequence[Done]) -> None:
    """Put the results of all processes into a line."""
    took = sorted(seconds for each in done for seconds in each.took)
    failures = [failure for each in done for failure in each.failures]
    if failures:
        cell.failure = f"{len(failures)}: {_short(failures[0])}"
    if len(took) < 2:
        return
    whole = max(each.ended for each in done) - min(each.began for each in done)
    cell.rate = len(took) / whole
    cell.p50_s, cell.p99_s = percentile(took, 50), percentile(took, 99)
    cell.client_cores = sum(each.processor_s for each in done) / whole


def _short(text: str) -> str:
    line = " ".join(text.rpartition("FATAL:")[2].split()).replace("|", "/")
    return line if len(line) <= 90 else f"…{line[-90:]}"


def _work(scenario: Scenario, dsn: str, seconds: float, number: int, start: Barrier) -> Done | str:
    """Open a backend, work for so many seconds, and keep it open until all have ended.

    Returns:
        The result; the reason why the volume could not be opened; or "" if that of another process could not.
    """
    try:
        with PostgresBackend(dsn, scenario.volume.format(number)) as backend:
            work = Work(backend, scenario.directory.format(number), number)
            operation = getattr(work, scenario.operation)
            work.prepare()
            for turn in range(WARM_UP):
                operation(turn)
            start.wait()
            processor, began = time.process_time(), time.monotonic()
            took, failures, turn = [], [], WARM_UP
            while (before := time.monotonic()) < began + seconds:
                try:
                    operation(turn)
                    took.append(time.monotonic() - before)
                except OSError as error:
                    failures.append(str(error))
                turn += 1
            done = Done(began, time.monotonic(), took, time.process_time() - processor, failures)
            start.wait()  # all have done their work
            start.wait()  # and are measured
            return done
    except OSError as error:
        start.abort()
        return str(error)
    except threading.BrokenBarrierError:
        return ""


@contextmanager
def most_connections(dsn: str, every_s: float = 0.1) -> Iterator[list[int]]:
    """Count the connections of clients, without this one, while the block runs. The first item is the maximum.

    A count takes some 0.5 ms of the server. A server that has no connection left for the count has `CONNECTIONS`.
    """
    import psycopg

    most, ended = [0], threading.Event()
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    try:
        connection = psycopg.connect(dsn, autocommit=True)
    except psycopg.OperationalError as error:
        if "too many clients" not in str(error):
            raise
        yield [CONNECTIONS]
        return
    with connection:

        def count() -> None:
            while True:
                rows = connection.execute(query).fetchone()
                most[0] = max(most[0], rows[0] if rows else 0)
                if ended.wait(every_s):
                    return

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield most
        finally:
            ended.set()
            thread.join()


# -- the same by pgbench -------------------------------------------------------------------------------------------


def recorded(scenario: Scenario, dsn: str, count: int) -> list[list[tuple[str, int]]]:
    """Record the SQL of each process's operation, one after the other; return the scripts of each."""

    def record(number: int, start: Barrier) -> list[list[tuple[str, int]]] | str:
        try:
            return [_scripts(scenario, dsn, number) for number in range(count)]
        except (OSError, TypeError, ValueError) as error:
            return str(error)

    with processes(1, record) as (_, results):
        found = results(WORK_LIMIT_S) or [f"no answer in {WORK_LIMIT_S:.0f} s"]
    if isinstance(found[0], str):
        raise SystemExit(f"the SQL of '{scenario.name}' could not be recorded: {found[0]}")
    return found[0]


def _scripts(scenario: Scenario, dsn: str, number: int) -> list[tuple[str, int]]:
    with PostgresBackend(dsn, scenario.volume.format(number)) as backend:
        work = Work(backend, scenario.directory.format(number), number)
        work.prepare()
        scripts = []
        for place, (name, weight) in enumerate(scenario.replayed):
            operation = getattr(work, name)
            operation(1)
            with recorded_sql.recording() as batches:
                operation(2)
            node, made = work.made(2) if scenario.makes_files else (0, b"")
            scripts.append((recorded_sql.pgbench_script(batches, node=node, name=made, prefix="ab"[place]), weight))
        return scripts


def make_tables(dsn: str) -> None:
    """Make the tables, with numbers of nodes that `recorded_sql.py` can tell from others."""
    import psycopg

    PostgresBackend(dsn, "shared").close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SELECT setval('fusebackend.node_block', {RECORDED_BLOCK})")


# -- the parts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle:
    """Idle mounts: their number, all connections, and the cores that they and the server take."""

    wanted: int
    mounts: int
    connections: int
    mount_cores: float
    server_cores: float
    failure: str = ""

    @property
    def text(self) -> str:
        missing = "" if self.mounts == self.wanted else f"; {self.wanted} do not fit: {self.failure}"
        return (
            f"{self.mounts} idle mounts of one volume: {self.connections} connections, {self.mount_cores * 100:.1f} % "
            f"of a core in the mounts and {self.server_cores * 100:.1f} % in the server{missing}."
        )


@dataclass(frozen=True)
class Burst:
    """p99 of `stat` and `open` of one host, in seconds: before, and while another creates files."""

    files: int
    took_s: float
    stat_s: tuple[float, float]
    open_s: tuple[float, float]

    @property
    def text(self) -> str:
        stat, opened = ([f"{value * 1000:.1f}" for value in each] for each in (self.stat_s, self.open_s))
        return (
            f"While one mount creates {self.files:,} files ({self.took_s:.0f} s), another's p99 of an uncached `stat` "
            f"goes from {stat[0]} to {stat[1]} ms, of `open` and `close` from {opened[0]} to {opened[1]} ms."
        )


class Parts:
    """The parts of the benchmark, and their results so far."""

    def __init__(self, run: Run, server: postgres.Server) -> None:
        self._run = run
        self._server = server
        self.cells: Cells = {}
        self.lines: list[str] = []
        self.of_idle: Idle | None = None
        self.of_burst: Burst | None = None

    def fast(self) -> None:
        self._measure("fast", "On the disk of this machine:", SCENARIOS, self._server)

    def slow(self) -> None:
        if (reason := slow_fsync.missing()) is not None:
            self.lines += [f"Without a slow disk: {reason}.", ""]
            return
        title = f"With {SLOW_FSYNC_S * 1000:.0f} ms more for each fsync of the server:"
        with postgres.running(durable=True, slow_fsync_s=SLOW_FSYNC_S) as server:
            self._measure("slow", title, SLOW_SCENARIOS, server)

    def far(self) -> None:
        for delay in DELAYS_MS:
            title = f"With {delay} ms more each way between host and server:"
            self._measure(f"{delay} ms", title, FAR_SCENARIOS, self._server, delay / 1000)

    def _measure(
        self, place: str, title: str, wanted: Iterable[str], server: postgres.Server, delay_s: float = 0.0
    ) -> None:
        """Fill the lines of one place, and print them as they come."""
        seconds = self._run.seconds
        for name in (name for name in wanted if name in self._run.only):
            for count in (each for each in self._run.processes if place == "fast" or each <= MOST_ELSEWHERE):
                cell = self.cells[place, name, count] = Cell(place, name, count)
                with ExitStack() as stack:
                    address = dsn = stack.enter_context(server.database())
                    if delay_s:
                        address, network = stack.enter_context(far_away(server, dsn))
                        network.latency_s = 2 * delay_s  # it delays the bytes of clients only: the round trip counts
                    make_tables(dsn)
                    together(SCENARIOS[name], address, Server([server.pid]), count, seconds, cell)
                    if recorded_sql.missing() is None:
                        scripts = recorded(SCENARIOS[name], dsn, count)
                        cell.replayed = recorded_sql.replay(address, scripts, seconds, self._run.work)
                print(place, *cell.row(), sep=" | ", file=sys.stderr)
        rows = [cell.row() for (where, _, _), cell in self.cells.items() if where == place]
        self.lines += [title, "", *markdown(HEADS, rows), ""]

    def idle(self) -> None:
        wanted, seconds = (16, 5.0) if self._run.quick else (MOUNTS, IDLE_S)
        mounts, failure = [], ""
        with self._server.database() as dsn, ExitStack() as stack:
            make_tables(dsn)
            for number in range(wanted):
                try:
                    mount = our_mount(f"postgres:{dsn}?volume=shared", self._run.work / f"idle{number}")
                    mounts.append(stack.enter_context(mount))
                except SystemExit as error:
                    failure = _short(str(error))
                    break
            time.sleep(1.5 * seconds)  # the work of the start is over then, and connections that it took are closed
            whole = Server([self._server.pid])
            with most_connections(dsn, every_s=2.0) as counted:
                before = whole.processor_s(), sum(mount.processor_s() for mount in mounts)
                time.sleep(seconds)
                after = whole.processor_s(), sum(mount.processor_s() for mount in mounts)
        server_cores, mount_cores = ((after[at] - before[at]) / seconds for at in (0, 1))
        self.of_idle = Idle(wanted, len(mounts), counted[0], mount_cores, server_cores, failure)
        self.lines += [self.of_idle.text, ""]

    def burst(self) -> None:
        files = BURST // 10 if self._run.quick else BURST
        with self._server.database() as dsn, ExitStack() as stack:
            make_tables(dsn)
            busy, other = self._run.work / "busy", self._run.work / "other"
            for root in (busy, other):
                stack.enter_context(our_mount(f"postgres:{dsn}?volume=shared", root))
            (other / "watched").mkdir()
            for number in range(WATCHED_FILES):
                (other / f"watched/{number}").write_text(TEXT)
            (busy / "burst").mkdir()
            began = time.monotonic()
            quiet = watch(other / "watched", lambda: time.monotonic() - began < 2 + files / 1000)
            worker = FORK.Process(target=_create, args=(busy / "burst", files), daemon=True)
            began = time.monotonic()
            worker.start()
            during = watch(other / "watched", worker.is_alive)
            took = time.monotonic() - began
            worker.join()
            if worker.exitcode:
                raise SystemExit("the burst of creates failed")
        self.of_burst = Burst(files, took, (quiet[0], during[0]), (quiet[1], during[1]))
        self.lines += [self.of_burst.text, ""]


def _create(directory: Path, files: int) -> None:
    for number in range(files):
        os.close(os.open(directory / f"f{number}", FLAGS, 0o644))


def watch(directory: Path, goes_on: Callable[[], bool]) -> tuple[float, float]:
    """Return p99 of `stat` and of `open` with `close`. The kernel's caches are dropped before each round of files."""
    stats, opens = [], []
    while goes_on() or len(stats) < 2:
        drop_caches()
        for number in range(WATCHED_FILES):
            path = directory / str(number)
            before = time.perf_counter()
            os.stat(path)
            between = time.perf_counter()
            os.close(os.open(path, os.O_RDONLY))
            stats.append(between - before)
            opens.append(time.perf_counter() - between)
    return percentile(stats, 99), percentile(opens, 99)


# -- targets -------------------------------------------------------------------------------------------------------


def targets(cells: Cells, idle: Idle | None, burst: Burst | None) -> list[list[str]]:
    """Compare the figures with their targets: 16 processes with one and with `pgbench`, the rest with fixed bounds."""
    rows: list[list[str]] = []

    def add(words: str, measured: float | None, *, least: float = 0.0, most: float = 0.0, unit: str = " ×") -> None:
        """Add a row. `measured` is None where it was not measured."""
        bound = f"at least {least:.2g}{unit}" if least else f"at most {most:.2g}{unit}"
        if measured is None:
            rows.append([words, bound, "", "not measured"])
        else:
            reached = measured >= least if least else measured <= most
            found = f"{measured:.2f}".rstrip("0").rstrip(".") + unit
            rows.append([words, bound, found, "yes" if reached else "no"])

    def grown(place: str, scenario: str) -> float | None:
        many, one = cells.get((place, scenario, 16)), cells.get((place, scenario, 1))
        return many.rate / one.rate if many and one and one.rate else None

    add("slow disk: 16 in volumes of their own, of one", grown("slow", "own"), least=8)
    add("slow disk: 16 in one volume, of one", grown("slow", "shared"), least=6)
    for scenario, words in (("own", "volumes of their own"), ("shared", "one volume")):
        many, one = cells.get(("fast", scenario, 16)), cells.get(("fast", scenario, 1))
        share = many.rate / many.replayed if many and many.replayed else None
        waits = many.p99_s / one.p50_s if many and one and one.p50_s and many.rate else None
        add(f"16 in {words}, of one", grown("fast", scenario), least=2)
        add(f"16 in {words}, of `pgbench`", share, least=1 / 3)
        add(f"p99 of 16 in {words}, of p50 of one", waits, most=20)
    add("16 in one directory, of one", grown("fast", "hot"), least=1)
    connections = cores = None
    if idle is not None and idle.mounts:
        part = MOUNTS / idle.mounts  # where not all fit: as many as they would take at this rate
        connections, cores = idle.connections * part, (idle.mount_cores + idle.server_cores) * 100 * part
    add(f"connections of {MOUNTS} idle mounts", connections, most=70, unit="")
    add(f"processor of {MOUNTS} idle mounts and the server", cores, most=2, unit=" % of a core")
    for name, pair in (("stat", burst and burst.stat_s), ("open", burst and burst.open_s)):
        add(f"p99 of `{name}` beside a burst, of that without", pair[1] / pair[0] if pair else None, most=2)
    return rows


# -- the benchmark -------------------------------------------------------------------------------------------------

PARTS = {"fast": Parts.fast, "slow": Parts.slow, "far": Parts.far, "idle": Parts.idle, "burst": Parts.burst}


@benchmark(
    "many-hosts",
    "1, 4, 16 and 64 processes on one PostgreSQL, each with a backend of its own",
    option("--seconds", narrows=False, type=positive, help=f"how long each works (default: {SECONDS})"),
    option("--processes", type=numbers, help="how many, with commas (default: 1,4,16,64)"),
    option("--parts", type=words_of(PARTS), default=tuple(PARTS), help=f"of {', '.join(PARTS)}"),
    only(SCENARIOS),
    missing=postgres.missing,
    quick="1 s each, 1 and 16 processes, 16 mounts, a small burst",
    table="many hosts",
)
def many_hosts(run: Run) -> list[str]:
    """In each process repeat the operation of a scenario (`SCENARIOS`), in a database that is new for each line, and
    then replay its recorded SQL by as many `pgbench` (`recorded_sql.py`). Processor time is a share of one core."""
    run.seconds = run.seconds or (1 if run.quick else SECONDS)
    run.processes = run.processes or ((1, 16) if run.quick else PROCESSES)
    postgres.SETTINGS = (*postgres.SETTINGS, f"max_connections={CONNECTIONS}", "shared_buffers=128MB")
    with postgres.running(durable=True) as server:
        parts = Parts(run, server)
        for part in run.parts:
            PARTS[part](parts)
    without = [] if (reason := recorded_sql.missing()) is None else [f"Without `pgbench`: {reason}."]
    reached = targets(parts.cells, parts.of_idle, parts.of_burst)
    figures = markdown(["figure", "target", "measured", "reached"], reached)
    return [f"Each process works for {run.seconds} s.", *without, "", *parts.lines, *figures]
