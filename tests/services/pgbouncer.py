"""A throwaway PgBouncer in front of a `Postgres`: in transaction mode its clients share two processes of the server.

    with pgbouncer.running(postgres) as bouncer:
        dsn = bouncer.dsn("test_0123")          # as `Postgres.dsn`, by way of the pooler

It listens on a Unix socket in a temporary directory, and is ended by its process id. It refuses to run as root, so root
starts it as the user `postgres`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.postgres import PORT as SERVER_PORT
from services.postgres import Postgres

PORT = 54330
LIMIT_S = 30.0


def missing() -> str | None:
    """Return the reason why none can start on this machine, or None."""
    return None if _program() else "PgBouncer is not installed (Debian: pgbouncer)"


def _program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """The address of one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def dsn(self, database: str) -> str:
        return f"host={self.directory} port={PORT} user=postgres dbname={database}"


@contextlib.contextmanager
def running(
    postgres: Postgres, *, mode: str = "transaction", processes: int = 2, round_robin: bool = False
) -> Iterator[PgBouncer]:
    """Run one for the length of a block. Skip or fail the test where none can run.

    Args:
        mode: PgBouncer's `pool_mode`.
        processes: of the server, for each database: two are so few that clients share them all the time.
        round_robin: a transaction gets the one that has rested for longest, else the one that was used last.
    """
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    program = _program()
    assert program is not None
    directory = Path(tempfile.mkdtemp(prefix="fusebackend-pool-"))
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={postgres.directory} port={SERVER_PORT} user=postgres\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {directory}\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {processes}\nserver_round_robin = {int(round_robin)}\n"
        "max_client_conn = 200\nserver_login_retry = 0.1\n"
    )
    command = [program, str(settings)]
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres", "postgres")
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=INT", *command]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        bouncer = PgBouncer(directory)
        _wait(bouncer, process)
        yield bouncer
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        shutil.rmtree(directory)


def _wait(bouncer: PgBouncer, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            psycopg.connect(bouncer.dsn("postgres")).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (bouncer.directory / "log").read_text(errors="replace")[-2000:]
                pytest.fail(f"PgBouncer did not start: {error}\n{log}", pytrace=False)
            time.sleep(0.01)
