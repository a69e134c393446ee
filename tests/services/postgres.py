"""A throwaway PostgreSQL: its own cluster in a temporary directory, reached through a Unix socket there and no network.

    def test_something(postgres):                 # the fixture in conftest.py, one server for all workers of a run
        with postgres.database() as dsn: ...      # an empty database, dropped at the end of the block

`Postgres` is its address, all that a test of the shared server needs (`shared.py`); `Server` also starts and stops it.
The server is a child of the process that starts it and is ended by its process id; the kernel ends it when that process
is killed. It refuses to run as root, so root starts it as the user `postgres`. Without `durable` it does not wait for
the disk. With `slow_fsync_s` each fsync of the server takes that much longer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from services import slow_fsync
from services.program import LIMIT_S, Program, as_user

PORT = 54329
"""Only the name of the socket: the server listens on no network."""

SETTINGS = (
    "listen_addresses=", "shared_buffers=16MB", "max_connections=120", "timezone=UTC", "logging_collector=off",
    "log_line_prefix=%m %d ",
)  # fmt: skip
CARELESS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def _programs() -> Path | None:
    """Find the directory of `initdb` and `postgres`: the newest of Debian's versions, else the one in PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    found = shutil.which("initdb")
    candidates = [*reversed(versions), *([Path(os.path.realpath(found)).parent] if found else [])]
    return next((path for path in candidates if (path / "postgres").exists() and (path / "initdb").exists()), None)


def missing() -> str | None:
    """Return the reason why no server can start on this machine, or None."""
    if _programs() is None:
        return "PostgreSQL is not installed (Debian: postgresql)"
    if find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'fusebackend[postgres]')"
    return None


def require() -> None:
    """Skip the test where there is no PostgreSQL; see `skips.py` for CI."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@functools.cache
def _new_data(programs: Path) -> Path:
    """Make the data directory that each cluster of this process begins with: initdb takes a second, a copy a tenth."""
    directory = Path(tempfile.mkdtemp(prefix="fusebackend-initdb-"))
    atexit.register(shutil.rmtree, directory)
    if as_user():
        shutil.chown(directory, "postgres", "postgres")
    options = ["-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C.UTF-8"]
    _done(programs / "initdb", "-D", str(directory / "data"), *options, directory=directory)
    return directory / "data"


def _done(program: Path, *words: str, directory: Path) -> None:
    """Run a program of PostgreSQL to its end, as the user that it may run as."""
    command = ["setpriv", *as_user(), "--", str(program), *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{program.name} failed:\n{done.stdout}{done.stderr}"


class Postgres:
    """The address of a cluster, of this or another process. `directory` holds its socket and its log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def runs(self) -> bool:
        """Return whether the server runs. One of `shared.py` runs as long as the connection to its keeper is open."""
        return True

    @property
    def log_text(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return libpq's connection string."""
        return f"host={self.directory} port={PORT} user={user} dbname={database}"

    def uri(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the connection string as a URI."""
        host = str(self.directory).replace("/", "%2F")
        return f"postgresql://{user}@{host}:{PORT}/{database}"

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database and yield its DSN; drop it at the end and end its connections.

        It takes 40 ms of a processor. Block by block, as is the default, the creation alone takes 54 in place of 26.
        """
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY")
        try:
            yield self.dsn(name)
        finally:
            if self.runs:
                self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        """Run one statement as the superuser, outside of a transaction."""
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


class Server(Program, Postgres):
    """One cluster. `start` and `stop` (or `crash`) may follow each other; `remove` ends it for good.

    Args:
        settings: more of them, as `max_connections=12`; they take the place of ours.
        in_memory: its files are in memory where there is room. ext4 looks long for the inodes of a new database.
    """

    name = "PostgreSQL"

    def __init__(
        self, *settings: str, durable: bool = False, slow_fsync_s: float = 0.0, in_memory: bool = False
    ) -> None:
        programs = _programs()
        assert programs is not None, "call `require` first"
        self._programs = programs
        self._settings = SETTINGS + (() if durable else CARELESS) + settings
        super().__init__("pg", user=True, in_memory=in_memory)
        self._environment = dict(os.environ)
        if slow_fsync_s:
            self._environment["LD_PRELOAD"] = str(slow_fsync.build(self.directory, slow_fsync_s))

    @property
    def data(self) -> Path:
        """The data directory: of a cluster that is stopped, it can be copied and replaced."""
        return self.directory / "data"

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self.data.exists():
            subprocess.run(["cp", "-a", _new_data(self._programs), self.data], check=True, timeout=LIMIT_S)
        settings = [word for setting in self._settings for word in ("-c", setting)]
        words = ["-D", str(self.data), "-k", str(self.directory), "-p", str(PORT), *settings]
        self.run([*as_user(), "--pdeathsig=INT", "--", str(self._programs / "postgres"), *words], self._environment)

    def stop(self) -> None:
        """Shut down fast: roll back open transactions, close connections."""
        self.end(signal.SIGINT)

    def crash(self) -> None:
        """Shut down at once, as in a power failure: the next start recovers from the log."""
        self.end(signal.SIGQUIT)

    def base_backup(self, target: Path) -> None:
        """Copy the data directory of the running server, with the log that makes it consistent."""
        address = ["-h", str(self.directory), "-p", str(PORT), "-U", "postgres"]
        words = [*address, "-D", str(target), "-c", "fast"]
        _done(self._programs / "pg_basebackup", *words, directory=self.directory)

    def remove(self) -> None:
        self.crash()
        super().remove()

    def answers(self) -> bool:
        return answers(self.dsn())


def answers(dsn: str) -> bool:
    """Return whether a server takes connections."""
    import psycopg

    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def running(
    *settings: str, durable: bool = False, slow_fsync_s: float = 0.0, in_memory: bool = False
) -> Iterator[Server]:
    """Run a server for the length of a block. Skip or fail the test where none can run, see `require`."""
    require()
    server = Server(*settings, durable=durable, slow_fsync_s=slow_fsync_s, in_memory=in_memory)
    try:
        server.start()
        yield server
    finally:
        server.remove()
