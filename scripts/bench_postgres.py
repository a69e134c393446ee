"""The benchmark of `postgres:`: a million files, a change against its SQL, and ordinary work against JuiceFS."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from driver import Medians, Run, Tables, benchmark, compare, in_rounds, markdown, only, option, order, positive
from measures import Measures, Scale
from peers import PEERS, Mount, Side, juicefs_mounted, ours
from services import postgres as service
from serving import our_mount
from work import NEEDLE, drop_caches, make_source_tree, shell, timed, vocabulary

from fusebackend.backends import PostgresBackend
from fusebackend.backends.postgres.search import SearchQueries, make_index
from fusebackend.backends.postgres.statements import NUMBERS
from fusebackend.databases.pipeline import BEGIN, COMMIT, Statement, send
from fusebackend.protocol import ROOT_NODE, Caller
from fusebackend.volumes import trigram

FILES_PER_DIRECTORY = 100
DIRECTORIES = (100, 10_000)
FIRST_NODE = 1 << 20
ME = Caller(0, 0)

# -- scale ---------------------------------------------------------------------------------------------------------


def scale(server: service.Postgres, run: Run) -> list[str]:
    few, many = DIRECTORIES[0], DIRECTORIES[1] // 10 if run.quick else DIRECTORIES[1]
    measures: dict[int, dict[str, Callable[[], object]]] = {}
    with ExitStack() as stack:
        for directories in (few, many):
            dsn = stack.enter_context(server.database())
            print(f"filling a volume of {directories * FILES_PER_DIRECTORY:,} files", file=sys.stderr)
            print(f"  took {timed(partial(fill, dsn, directories)):.0f} s", file=sys.stderr)
            backend = stack.enter_context(PostgresBackend(dsn))
            measures[directories] = scale_measures(backend, directories)
            check_plans(backend)

        def one(number: int) -> Iterator[tuple[str, str, float]]:
            for name in measures[few]:
                for size in order((few, many), number):
                    yield name, str(size), timed(measures[size][name]) * 1000

        medians = in_rounds(run.rounds, one, warm_up=1)  # which fills caches
    rows = []
    for name, found in medians.items():
        ms = found[str(few)], found[str(many)]
        rows.append([name, *(f"{each:.2f}" for each in ms), f"{ms[1] / ms[0]:.2f}"])
    heads = [f"of {size * FILES_PER_DIRECTORY:,} files (ms)" for size in (few, many)]
    return markdown(["what", *heads, "ratio"], rows)


def scale_measures(backend: PostgresBackend, directories: int) -> dict[str, Callable[[], object]]:
    chance = random.Random(directories)
    volume = backend.volume

    def ls() -> None:
        found = backend.ls(f"/d{chance.randrange(directories):05}")
        assert len(found.entries or ()) == FILES_PER_DIRECTORY

    def stat() -> None:
        for _ in range(20):
            parent = volume.lookup(ROOT_NODE, b"d%05d" % chance.randrange(directories)).node
            attr = volume.getattr(volume.lookup(parent, b"f%02d.txt" % chance.randrange(FILES_PER_DIRECTORY)).node)
            assert attr.size > 0

    def grep(path: str | None = None) -> None:
        found = backend.grep(NEEDLE, path)
        assert not found.truncated and len(found.matches or ()) == 1, found

    middle = f"/d{directories // 2:05}"
    return {
        "`ls` of a directory of 100": ls,
        "20 × `lookup`, `lookup`, `getattr`": stat,
        "`grep` of a string that one file holds": grep,
        "the same, below a directory of 100": partial(grep, middle),
        "`glob` of `*.txt` below a directory of 100": partial(backend.glob, "*.txt", middle),
    }


def check_plans(backend: PostgresBackend) -> None:
    """Fail if PostgreSQL would scan a whole table for a search."""
    with mock.patch.object(SearchQueries, "rows", autospec=True, side_effect=SearchQueries.rows) as rows:
        backend.grep(NEEDLE)
        backend.glob("*.txt", "/d00001")
    for (queries, query), parameters in rows.call_args_list:
        plan = "\n".join(line for (line,) in queries.rows(f"EXPLAIN {query}", **parameters))
        for table in ("inode", "dentry", "chunk", "entry"):
            if f"Seq Scan on {table}" in plan:
                raise SystemExit(f"{table} is read from end to end:\n{plan}")


def fill(dsn: str, directories: int) -> None:
    """Fill a volume by COPY, as if its files had been written and indexed."""
    import psycopg

    with PostgresBackend(dsn) as backend:
        volume = backend.volume.id
    first_file, count = FIRST_NODE + directories, directories * FILES_PER_DIRECTORY

    def inode(node: int, mode: int, nlink: int, size: int, parent: int) -> tuple[object, ...]:
        made = {"node": node, "mode": mode, "nlink": nlink, "size": size, "parent": parent, "blocks": 8}
        return (volume, *(made.get(field, 0) for field in NUMBERS))

    def dentries() -> Iterator[tuple[object, ...]]:
        for number in range(directories):
            yield volume, ROOT_NODE, b"d%05d" % number, FIRST_NODE + number
        for number in range(count):
            parent, place = divmod(number, FILES_PER_DIRECTORY)
            yield volume, FIRST_NODE + parent, b"f%02d.txt" % place, first_file + number

    with psycopg.connect(dsn, autocommit=True) as connection:

        def copy(table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
            query = f"COPY fusebackend.{table} (volume, {', '.join(columns)}) FROM STDIN"
            with connection.cursor().copy(query) as target:
                for row in rows:
                    target.write_row(row)

        connection.execute("ALTER TABLE fusebackend.chunk DISABLE TRIGGER contents_changed")
        copy("inode", NUMBERS, (inode(FIRST_NODE + n, 0o40755, 2, 4096, ROOT_NODE) for n in range(directories)))
        copy("inode", NUMBERS, (inode(first_file + n, 0o100644, 1, len(text), 0) for n, text in all_texts(count)))
        copy("dentry", ("parent", "name", "node"), dentries())
        copy("chunk", ("node", "idx", "data"), ((volume, first_file + n, 0, text) for n, text in all_texts(count)))
        entries = ((n, b" ".join(trigram.words(text)).decode()) for n, text in all_texts(count))
        copy("entry", ("node", "words"), ((volume, first_file + n, words) for n, words in entries))
        connection.execute("ALTER TABLE fusebackend.chunk ENABLE TRIGGER contents_changed")
        if not make_index(connection):
            raise SystemExit("the server has no pg_trgm (Debian: postgresql-contrib)")
        connection.execute("VACUUM ANALYZE")


def all_texts(files: int) -> Iterator[tuple[int, bytes]]:
    """Yield texts of a dozen out of 2,000 words and a number; the middle one has the needle. Equal at each call."""
    chance = random.Random(7)
    words = vocabulary(chance)
    for number in range(files):
        needle = f"{NEEDLE}\n" if number == files // 2 else ""
        yield number, f"file {number}\n{needle}{' '.join(chance.choices(words, k=12))}\n".encode()


# -- metadata ------------------------------------------------------------------------------------------------------

OPERATIONS = 200
STAT = "stat (`lookup`)"
NAMES = ("create", "mkdir", STAT, "rename", "unlink")


def metadata(server: service.Postgres, run: Run) -> list[str]:
    with ExitStack() as stack:
        dsn = stack.enter_context(server.database())
        backend = stack.enter_context(PostgresBackend(dsn))
        mountpoint = run.work / "metadata"
        stack.enter_context(our_mount(f"postgres:{dsn}?volume=mounted", mountpoint))

        def one(number: int) -> Iterator[tuple[str, str, float]]:
            # In directories of their own, without each other's files.
            runs: dict[str, Callable[[], dict[str, float]]] = {
                "bare": partial(bare_times, backend, number + 1),
                "mount": partial(mount_times, mountpoint / f"mount{number}"),
                "ours": partial(volume_times, backend, number),
            }
            for who in order(list(runs), number):
                for name, seconds in runs[who]().items():
                    yield name, who, seconds * 1e6 / OPERATIONS

        medians = in_rounds(run.rounds, one, warm_up=1)
    rows = []
    for name, found in medians.items():
        bare, ours, mount = found["bare"], found["ours"], found["mount"]
        rows.append([name, f"{bare:.0f}", f"{ours:.0f}", f"{ours / bare:.2f}", f"{mount:.0f}", f"{mount / bare:.2f}"])
    heads = ["operation", "its SQL alone (µs)", "the volume (µs)", "ratio", "on a mount (µs)", "ratio"]
    return markdown(heads, rows)


def times(operations: Sequence[Callable[[int], object]], *, cold: bool = False) -> dict[str, float]:
    """Repeat each of the operations `NAMES`. When `cold`, drop the kernel's caches before `stat`."""
    found = {}
    for name, operation in zip(NAMES, operations, strict=True):
        if cold and name == STAT:
            drop_caches()
        found[name] = timed(lambda operation=operation: [operation(number) for number in range(OPERATIONS)])
    return found


def mount_times(directory: Path) -> dict[str, float]:
    """Time system calls on a mount."""
    directory.mkdir()
    return times([
        lambda number: os.close(os.open(directory / f"f{number}", os.O_WRONLY | os.O_CREAT, 0o644)),
        lambda number: os.mkdir(directory / f"d{number}"),
        lambda number: os.stat(directory / f"f{number}"),
        lambda number: os.rename(directory / f"f{number}", directory / f"r{number}"),
        lambda number: os.unlink(directory / f"r{number}"),
    ], cold=True)  # fmt: skip


def volume_times(backend: PostgresBackend, number: int) -> dict[str, float]:
    """Time operations of the kernel face."""
    volume = backend.volume
    directory = volume.mkdir(ROOT_NODE, b"ours%d" % number, 0o755, ME).node
    flags = os.O_WRONLY | os.O_CREAT
    return times([
        lambda n: volume.release(volume.create(directory, b"f%d" % n, 0o644, flags, ME).node, flags),
        lambda n: volume.mkdir(directory, b"d%d" % n, 0o755, ME),
        lambda n: volume.lookup(directory, b"f%d" % n),
        lambda n: volume.rename(directory, b"f%d" % n, directory, b"r%d" % n),
        lambda n: volume.unlink(directory, b"r%d" % n),
    ])  # fmt: skip


INODE = ", ".join(NUMBERS)
ENTRY = (
    f"SELECT {', '.join(f'i.{field}' for field in NUMBERS)} FROM fusebackend.dentry d JOIN fusebackend.inode i"
    " ON i.volume = d.volume AND i.node = d.node WHERE d.volume = %s AND d.parent = %s AND d.name = %s"
)
LOCK = f"SELECT {INODE} FROM fusebackend.inode WHERE volume = %s AND node = %s FOR UPDATE"
MAKE = f"INSERT INTO fusebackend.inode (volume, {INODE}) VALUES (%s, {', '.join('%s' for _ in NUMBERS)})"
NAME = "INSERT INTO fusebackend.dentry (volume, parent, name, node) VALUES (%s, %s, %s, %s)"
UNNAME = "DELETE FROM fusebackend.dentry WHERE volume = %s AND parent = %s AND name = %s"
REMOVE = "DELETE FROM fusebackend.inode WHERE volume = %s AND node = %s"
TOUCH = "UPDATE fusebackend.inode SET ctime_ns = %s WHERE volume = %s AND node = %s"
TOUCH_DIRECTORY = (
    "UPDATE fusebackend.inode SET mtime_ns = %s, ctime_ns = %s, version = %s WHERE volume = %s AND node = %s"
)
NOTIFY = "SELECT pg_notify(%s, %s)"


def bare_times(backend: PostgresBackend, number: int) -> dict[str, float]:
    """Time the same operations by SQL, with numbers and names known beforehand."""
    volume, first = backend.volume.id, FIRST_NODE + 4 * OPERATIONS * number
    directory = backend.volume.mkdir(ROOT_NODE, b"bare%d" % number, 0o755, ME).node

    def entry(name: bytes, lock: str = " FOR UPDATE OF i") -> Statement:
        return ENTRY + lock, (volume, directory, name)

    def make(name: bytes, n: int, mode: int) -> list[Statement]:
        values = dict.fromkeys(NUMBERS, 0) | {"node": first + n, "mode": mode, "nlink": 1}
        return [(MAKE, (volume, *values.values())), (NAME, (volume, directory, name, first + n))]

    def on(connection: Any) -> dict[str, float]:
        def change(decide: list[Statement], write: list[Statement]) -> None:
            send(connection, [BEGIN, (LOCK, (volume, directory)), *decide])
            touch = TOUCH_DIRECTORY, (1, 1, 1, volume, directory)
            send(connection, [*write, touch, (NOTIFY, (f"fusebackend_{volume}", "bench 1//")), COMMIT])

        def rename(n: int) -> None:
            old, new = b"f%d" % n, b"r%d" % n
            write = [(UNNAME, (volume, directory, old)), (NAME, (volume, directory, new, first + n))]
            change([entry(old), entry(new)], [*write, (TOUCH, (n, volume, first + n))])

        def unlink(n: int) -> None:
            name = b"r%d" % n
            change([entry(name)], [(UNNAME, (volume, directory, name)), (REMOVE, (volume, first + n))])

        return times([
            lambda n: change([entry(b"f%d" % n)], make(b"f%d" % n, n, 0o100644)),
            lambda n: change([entry(b"d%d" % n)], make(b"d%d" % n, OPERATIONS + n, 0o40755)),
            lambda n: send(connection, [entry(b"f%d" % n, lock="")]),
            rename,
            unlink,
        ])  # fmt: skip

    return backend.volume.connections.run(on)


# -- work ----------------------------------------------------------------------------------------------------------

RIVAL = PEERS["juicefs"]


def work(server: service.Postgres, run: Run) -> list[str]:
    """Do the same work on both, and make a table of seconds."""
    missing = RIVAL.missing() or (None if shutil.which("rsync") else "rsync is not installed (Debian: rsync)")
    if missing is not None:
        return [f"Not measured: {missing}."]
    size = Scale(bool(run.quick))
    make_source_tree(run.work / "source.tar", size.tree_files)
    (run.work / "source").mkdir()
    shell("tar xf ../source.tar", run.work / "source")
    measures = work_measures(Measures(size, run.work / "source.tar"), run.work / "source/tree")
    sides = [Side("fusebackend", lambda: None, partial(_ours_in, server)),
             Side(RIVAL.name, RIVAL.missing, partial(_rival_in, server))]  # fmt: skip
    medians = compare(run, sides, lambda mount: {name: measure(mount.root) for name, measure in measures.items()})
    return [*work_table(medians), "", work_verdict(medians)]


def work_measures(measures: Measures, tree: Path) -> dict[str, Callable[[Path], float]]:
    return {
        "untar": measures.untar,
        "git status": measures.git_status,
        "rg": measures.rg,
        "rsync -a": lambda root: timed(lambda: shell(f"rsync -a {tree} copy", root)),
        "rm -r": lambda root: timed(lambda: shell("rm -r tree", root)),
        f"create {measures.scale.files:,} small files": measures.create,
        "read them": measures.read,
        "unlink them": measures.unlink,
    }


def work_table(medians: Medians) -> list[str]:
    rows = []
    for name, found in medians.items():
        ours, theirs = found["fusebackend"], found[RIVAL.name]
        ratio = f"{ours / theirs:.2f}"
        rows.append([name, f"{ours:.2f}", f"{theirs:.2f}", f"**{ratio}**" if ours > theirs else ratio])
    return markdown(["measure", "fusebackend (s)", f"{RIVAL.name} (s)", f"fusebackend ÷ {RIVAL.name}"], rows)


def work_verdict(medians: Medians) -> str:
    """Compare with the targets: ahead of JuiceFS on each measure, and `untar` in half of its time."""
    ratios = {name: found["fusebackend"] / found[RIVAL.name] for name, found in medians.items()}
    behind = [name for name, ratio in ratios.items() if ratio > (0.5 if name == "untar" else 1.0)]
    missed = f"missed by {', '.join(behind)}" if behind else "reached"
    return f"Target (untar in half of {RIVAL.name}'s time, the others in less than its): {missed}."


@contextmanager
def _ours_in(server: service.Postgres, place: Path) -> Iterator[Mount]:
    with server.database() as dsn, ours(f"postgres:{dsn}?volume=bench").mounted(place) as mount:
        yield mount


@contextmanager
def _rival_in(server: service.Postgres, place: Path) -> Iterator[Mount]:
    with server.database() as dsn, juicefs_mounted(place, metadata_url(dsn)) as mount:
        yield mount


def metadata_url(dsn: str) -> str:
    """Return the URL that JuiceFS takes, of a database on a Unix socket."""
    from psycopg.conninfo import conninfo_to_dict

    found = conninfo_to_dict(dsn)
    where = f"host={found['host']}&port={found['port']}&sslmode=disable"
    return f"postgres://{found['user']}@/{found['dbname']}?{where}"


PARTS: dict[str, Callable[[service.Postgres, Run], list[str]]] = {"scale": scale, "metadata": metadata, "work": work}


@benchmark(
    "postgres",
    "`postgres:`: a million files, a change against its SQL, and ordinary work against JuiceFS",
    only(PARTS, narrows=False),
    option("--rounds", narrows=False, type=positive, help="(default: 7, of the work 1)"),
    missing=service.missing,
    quick="a tenth of the files",
)
def postgres(run: Run) -> Tables:
    """Measure on a PostgreSQL of its own. For the first two parts that does not wait for the disk, and the volume is
    called in this process; for `work` it waits. JuiceFS keeps the bytes of files in a local directory, and does not
    sync them; here they are rows."""
    asked = run.rounds
    kept = [setting for setting in service.SETTINGS if not setting.startswith("shared_buffers=")]
    service.SETTINGS = (*kept, "shared_buffers=256MB", "maintenance_work_mem=256MB")
    for name in run.only:
        run.rounds = asked or (1 if name == "work" else 7)
        with service.running(durable=name == "work") as server:
            yield f"postgres {name}", PARTS[name](server, run)
