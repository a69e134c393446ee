"""The SQL of an operation of a `postgres:` volume: recorded, and replayed by `pgbench`.

    with recording() as batches:
        backend.write("/d/file", "text")
    script = pgbench_script(batches, node=node, name=b"file")
    found = replay(dsn, [[(script, 1)]], seconds=5, work=directory)     # a pgbench for each list of scripts

Each batch of statements that was one round trip is one here: statements prepared once a connection, and executed in one
message. The number of the node that the operation made, and its name, are others in each transaction, so that it
changes rows as the operation did. The settings are those of a volume's connections.
"""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fusebackend.backends.postgres.host_session import SETTINGS
from fusebackend.backends.postgres.statements import ALWAYS, AS_GUESSED, IF_GUESSED
from fusebackend.databases import pipeline

FIRST_NODE = 1 << 40
"""Nodes of replayed operations begin here, where a volume of a benchmark has none."""

NODES_EACH = 10**9
"""Between the first nodes of two clients."""

PLAIN = frozenset((string.ascii_letters + string.digits + " ._-/").encode())
"""Bytes that PostgreSQL reads as themselves in a literal, an array, and a `bytea`."""

TRIES = 1000
"""How often pgbench repeats a transaction that the server rolls back in favour of another, as a volume does."""


class Sent(NamedTuple):
    """A statement, its parameters, and the PostgreSQL types (OIDs) that they were sent as."""

    query: str
    parameters: Sequence[object]
    types: Sequence[int]


Batch = list[Sent]


@contextmanager
def recording() -> Iterator[list[Batch]]:
    """Yield the batches that this thread sends to PostgreSQL in the block, a list of statements each."""
    from psycopg.adapt import PyFormat, Transformer

    real, mine = pipeline.send, threading.get_ident()
    batches: list[Batch] = []

    def send(
        connection: Any, statements: Sequence[pipeline.Statement], *more: Any, **words: Any
    ) -> list[pipeline.Rows]:
        if threading.get_ident() == mine:
            batch = []
            for query, parameters in statements:
                # A replay changes the row each time.
                query = query.replace(IF_GUESSED, ALWAYS).replace(AS_GUESSED, "")
                transformer = Transformer(connection)
                transformer.dump_sequence(parameters, [PyFormat.BINARY] * len(parameters))
                batch.append(Sent(query, parameters, transformer.types or ()))
            batches.append(batch)
        return real(connection, statements, *more, **words)

    def put(old: object, new: object) -> None:
        for module in list(sys.modules.values()):
            if module.__name__.startswith("fusebackend") and getattr(module, "send", None) is old:
                module.send = new  # type: ignore[attr-defined]

    put(real, send)
    try:
        yield batches
    finally:
        put(send, real)


# -- scripts -------------------------------------------------------------------------------------------------------


def pgbench_script(batches: Sequence[Batch], *, node: int = 0, name: bytes = b"", prefix: str = "a") -> str:
    """Make a pgbench script that does the same again, at each run with another node and name.

    Args:
        node: the number of the node that was made; 0 for none. It must not be part of another number.
        name: the name that was made; b"" for none.
        prefix: another one for each script of a client: names of prepared statements and of variables begin with it.
    """
    prepared: dict[tuple[str, tuple[int, ...]], str] = {}
    lines = []
    for batch in batches:
        words = []
        for sent in batch:
            if not sent.parameters:
                words.append(sent.query)
                continue
            statement = prepared.setdefault((sent.query, tuple(sent.types)), f"{prefix}{len(prepared)}")
            values = ", ".join(literal(value, node, name, prefix) for value in sent.parameters)
            words.append(f"EXECUTE {statement}({values})")
        lines.append(" \\; ".join(words) + ";")
    first = [f"\\if :{prefix}first = 1"]
    for (query, types), statement in prepared.items():
        first.append(f"PREPARE {statement}({', '.join(map(type_name, types))}) AS {numbered(query)};")
    first += [f"\\set {prefix}first 0", "\\endif"]
    count = [f"\\set {prefix}number :{prefix}number + 1", f"\\set {prefix}node :firstnode + :{prefix}number"]
    return "\n".join([*first, *count, *lines, ""])


def numbered(query: str) -> str:
    """Number the parameters, in one line: a pgbench script ends a statement at its semicolon."""
    numbers = iter(range(1, query.count("%s") + 1))
    return re.sub(r"%s", lambda _: f"${next(numbers)}", " ".join(query.split()))


def type_name(oid: int) -> str:
    """Return the name of a PostgreSQL type; `unknown` leaves it to the statement."""
    from psycopg import adapters

    if not oid:
        return "unknown"
    for info in adapters.types:
        if oid == info.oid:
            return info.name
        if oid == info.array_oid:
            return f"{info.name}[]"
    raise ValueError(f"a statement has a parameter of the type {oid}, which this can't write down")


def literal(value: object, node: int, name: bytes, prefix: str) -> str:
    """Write a parameter as SQL, with pgbench's variables for the number and the name of the new file."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f":{prefix}node" if node and value == node else str(value)
    if isinstance(value, (list, tuple)):
        return "'{" + ",".join(_element(each, node, name, prefix) for each in value) + "}'"
    return f"'{_words(value, node, name, prefix)}'"


def _element(value: object, node: int, name: bytes, prefix: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return literal(value, node, name, prefix)
    words = _words(value, node, name, prefix)
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _words(value: object, node: int, name: bytes, prefix: str) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        if not PLAIN.issuperset(value):
            return f"\\x{value.hex()}"
        text = value.decode()
    elif isinstance(value, str):
        text = value.replace("'", "''")
    else:
        raise TypeError(f"a statement has a parameter {value!r}, which this can't write down")
    if name:
        text = text.replace(name.decode(), f"f:{prefix}node")
    return re.sub(rf"(?<!\d){node}(?!\d)", f":{prefix}node", text) if node else text


# -- pgbench -------------------------------------------------------------------------------------------------------


def missing() -> str | None:
    """Return the reason why nothing can be replayed here, or None."""
    return None if _program() else "pgbench is not installed (Debian: postgresql-contrib)"


def _program() -> str | None:
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda path: float(path.parts[-3]))
    return str(beside[-1]) if beside else shutil.which("pgbench")


def replay(dsn: str, clients: Sequence[Sequence[tuple[str, int]]], seconds: int, work: Path) -> float:
    """Run one pgbench for each client, all at once; return the transactions a second of all together.

    Args:
        clients: for each, its scripts with their weights.
        work: a directory for the scripts.
    """
    program = _program()
    assert program is not None, "ask `missing` first"
    environment = {**os.environ, "PGOPTIONS": " ".join(f"-c {name}={_escaped(SETTINGS[name])}" for name in SETTINGS)}
    running = []
    try:
        for number, scripts in enumerate(clients):
            command = [program, "-n", "-M", "simple", "-c", "1", "-T", str(seconds), f"--max-tries={TRIES}"]
            command += ["-D", f"firstnode={FIRST_NODE + number * NODES_EACH}"]
            for place, (script, weight) in enumerate(scripts):
                path = work / f"client{number}-{place}.sql"
                path.write_text(script)
                command += ["-f", f"{path}@{weight}"]
                prefix = re.findall(r"^\\if :(\w+)first", script)[0]
                command += ["-D", f"{prefix}first=1", "-D", f"{prefix}number={place * NODES_EACH // 10}"]
            running.append(
                subprocess.Popen(
                    [*command, dsn], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        return sum(_rate(process) for process in running)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _escaped(value: str) -> str:
    return re.sub(r"([\\ ])", r"\\\1", value)


def _rate(process: subprocess.Popen[str]) -> float:
    output, errors = process.communicate()
    found = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if process.returncode or found is None or "aborted" in errors:
        raise SystemExit(f"pgbench can't replay the recorded SQL:\n{errors[-2000:]}{output[-500:]}")
    return float(found[1])
