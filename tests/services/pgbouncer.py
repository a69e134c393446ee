"""A throwaway PgBouncer in front of a `Postgres`: in transaction mode its clients share two processes of the server.

    with pgbouncer.running(postgres) as bouncer:
        dsn = bouncer.dsn("test_0123")          # as `Postgres.dsn`, by way of the pooler

It listens on a Unix socket in a temporary directory, and is ended by its process id. It refuses to run as root, so root
starts it as the user `postgres`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from services.postgres import PORT as SERVER_PORT
from services.postgres import Postgres, answers
from services.program import Program, as_user

PORT = 54330


def missing() -> str | None:
    """Return the reason why none can start on this machine, or None."""
    return None if shutil.which("pgbouncer") else "PgBouncer is not installed (Debian: pgbouncer)"


class PgBouncer(Program):
    name = "PgBouncer"

    def __init__(self) -> None:
        super().__init__("pool", user=True)

    def dsn(self, database: str) -> str:
        return f"host={self.directory} port={PORT} user=postgres dbname={database}"

    def answers(self) -> bool:
        return answers(self.dsn("postgres"))


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
    program = shutil.which("pgbouncer")
    assert program is not None
    bouncer = PgBouncer()
    settings = bouncer.directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={postgres.directory} port={SERVER_PORT} user=postgres\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {bouncer.directory}\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {processes}\nserver_round_robin = {int(round_robin)}\n"
        "max_client_conn = 200\nserver_login_retry = 0.1\n"
    )
    try:
        bouncer.run([*as_user(), "--pdeathsig=INT", "--", program, str(settings)])
        yield bouncer
    finally:
        bouncer.remove()
