"""What can't be read: told in its place, one line, and nothing else suffers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import graphs
import msgspec
import psycopg
import pytest
import threadcases
from agentface import names, text
from eventually import eventually
from for_each import for_each
from graphs import say, thread, use, user, write
from langgraph.graph import START, StateGraph
from nodes import node_at
from raising import raising
from test_threads_model import deltas

from fusebackend.backends import ThreadsBackend
from fusebackend.backends.threads.database import values
from fusebackend.backends.threads.database.postgres import PostgresDatabase
from fusebackend.backends.threads.database.rows import NULL_TASK, Damaged, Place
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.each import each
from fusebackend.urls import UrlError, open_backend


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("plain") / "threads.db"
    with graphs.sqlite_saver(where) as saver:
        threadcases.plain(saver)
    return where


@pytest.fixture
def path(plain: Path, tmp_path: Path) -> str:
    """A database with one plain thread."""
    return str(shutil.copy(plain, tmp_path))


@contextlib.contextmanager
def changed(path: str, *statements: str, values: Any = ()) -> Iterator[ThreadsBackend]:
    """The backend after somebody has changed the database by hand."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()
    with ThreadsBackend.from_sqlite(path) as backend:
        yield backend


def history(backend: ThreadsBackend, line: str) -> list[str]:
    """The names of the checkpoints."""
    return [name for name in names(backend, f"{line}/history") if not name.endswith((".jsonl", ".json"))]


LIMIT_S = 60.0
NEWEST = "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints)"


# -- a checkpoint --------------------------------------------------------------------------------------------------


@for_each(
    ("change", "says"),
    [
        ("checkpoint = x'c1'", "not valid MessagePack"),
        ("checkpoint = x''", "not valid MessagePack"),
        ("checkpoint = NULL", "is missing"),
        ("checkpoint = x'93010203'", "no mapping but list"),
        ("type = 'msgpack+aes'", "encrypted (msgpack+aes): only the program that has the key can read it"),
        ("type = 'pickle'", "pickled"),
        ("type = 'cbor'", "the serialisation 'cbor' is not known"),
        ("type = NULL", "the serialisation None is not known"),
        ("type = 'json'", "not valid JSON"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_says_so_in_its_place(
    plain: Path, tmp_path: Path, change: str, says: str
) -> None:
    path = shutil.copy(plain, tmp_path)
    with changed(path, f"UPDATE checkpoints SET {change} WHERE {NEWEST}") as backend:
        *others, newest = history(backend, "/plain")
        for directory in (f"/plain/history/{newest}", "/plain/head"):
            assert names(backend, directory) == ["ERROR.txt"]
            assert says in text(backend, f"{directory}/ERROR.txt")
        for document in ("state.json", "messages.jsonl"):
            assert says in json.loads(text(backend, f"/plain/{document}"))["error"]
        assert names(backend, f"/plain/history/{others[-1]}") == ["a.txt", "c.txt", "second.txt"]


def test_an_error_of_a_value_can_go_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(Damaged("no text")))
    assert (type(error), error.errno, str(error)) == (Damaged, errno.EIO, "no text")


def test_what_follows_from_a_damaged_write_says_so_and_what_came_before_is_there(path: str) -> None:
    damaged = "UPDATE writes SET value = x'81' WHERE rowid = (SELECT min(rowid) FROM writes WHERE channel = 'files')"
    with changed(path, damaged) as backend:
        checkpoints = history(backend, "/plain")
        found = [names(backend, f"/plain/history/{name}") for name in checkpoints]
        assert (found[0], found[-1]) == ([], ["ERROR.txt"])
        assert "a write to 'files'" in text(backend, f"/plain/history/{checkpoints[-1]}/ERROR.txt")
        assert names(backend, "/plain/head") == ["ERROR.txt"]
        assert json.loads(text(backend, "/plain/messages.jsonl").splitlines()[0])["type"] == "human"
    with ThreadsBackend.from_sqlite(path, write="head") as backend:
        assert names(backend, "/plain/head") == ["ERROR.txt"]
        assert "Read-only" in (backend.write("/plain/head/x.txt", "x").error or "")


@pytest.mark.parametrize("value", [b"\x81", b"\x05"])
def test_a_damaged_write_that_comes_while_a_line_is_shown_hides_its_files_alone(path: str, value: bytes) -> None:
    with ThreadsBackend.from_sqlite(path) as backend:
        expected = text(backend, "/plain/messages.jsonl")
        assert names(backend, "/plain/head") == ["a.txt", "c.txt", "second.txt"]
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value) "
                f"SELECT thread_id, '', max(checkpoint_id), '{NULL_TASK}', 0, 'files', 'msgpack', ? FROM checkpoints",
                (value,),
            )
            connection.commit()
        assert names(backend, "/plain/head") == ["ERROR.txt"]
        assert "a write to 'files'" in text(backend, "/plain/head/ERROR.txt")
        assert text(backend, "/plain/messages.jsonl") == expected
        assert json.loads(text(backend, "/plain/state.json"))["thread_id"] == "plain"


def test_a_record_that_cannot_be_stored_again_stays_where_it_is(tmp_path: Path) -> None:
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver:
        agent = graphs.deep_agent(saver, [say("ok")])
        agent.invoke(user("go", files={"/odd.txt": {"content": "x", "extra": {1, 2}}}), thread("t"))
        with ThreadsBackend.from_sqlite(where, write="head") as backend:
            assert text(backend, "/t/head/odd.txt") == "x"
            assert backend.move("/t/head/odd.txt", "/t/head/moved.txt").error is None
            assert names(backend, "/t/head") == ["moved.txt"]
        assert list(graphs.state_at(agent, thread("t"))["files"]) == ["/moved.txt"]


def test_a_history_that_was_pruned_is_as_langgraph_finds_it_and_says_so(path: str) -> None:
    with graphs.sqlite_saver(path) as saver:
        agent = graphs.deep_agent(saver)
        ids = graphs.checkpoint_ids(agent, thread("plain"))
    pruned = [f"DELETE FROM {table} WHERE checkpoint_id < '{ids[-3]}'" for table in ("checkpoints", "writes")]
    with changed(path, *pruned) as backend, graphs.sqlite_saver(path) as saver:
        state = graphs.state_at(graphs.deep_agent(saver), thread("plain"))
        assert names(backend, "/plain/head") == [key.lstrip("/") for key in sorted(state.get("files") or {})]
        talk = text(backend, "/plain/messages.jsonl")
        assert [json.loads(line)["id"] for line in talk.splitlines()] == [one.id for one in state["messages"]]
        info = next(info for info in backend.ls("/plain").entries or [] if info["path"].endswith("messages.jsonl"))
        assert info["size"] == len(talk.encode())
        assert "which is gone" in text(backend, "/plain/history/@latest/ERROR.txt")
        assert ids[-4] in json.loads(text(backend, "/plain/state.json"))["warning"]
    with graphs.sqlite_saver(path) as saver, ThreadsBackend.from_sqlite(path) as backend:
        threadcases.plain(saver, "whole")
        assert "warning" not in json.loads(text(backend, "/whole/state.json"))


def test_metadata_that_cannot_be_read_costs_the_name_only(path: str) -> None:
    with changed(path, f"UPDATE checkpoints SET metadata = x'ff' WHERE {NEWEST}") as backend:
        newest = history(backend, "/plain")[-1]
        assert newest.endswith("Z-none-unknown")
        assert names(backend, f"/plain/history/{newest}") == ["a.txt", "c.txt", "second.txt"]


# -- odd rows --------------------------------------------------------------------------------------------------------

COPY = """
    INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
    SELECT {thread}, {ns}, {id}, {parent}, {type}, {checkpoint}, {metadata} FROM checkpoints LIMIT 1"""
SAME = {"thread": "'odd'", "ns": "''", "id": "'1'", "parent": "NULL"}
SAME |= {name: name for name in ("type", "checkpoint", "metadata")}


@for_each(
    "odd",
    [
        {"thread": "x'c1'"},
        {"thread": "x''"},
        {"thread": "CAST(x'ff' AS TEXT)"},
        {"ns": "x'c1'"},
        {"id": "x'c1'"},
        {"id": "'ffffffff-ffff-6fff-ffff-ffffffffffff'"},
        {"parent": "x'c1'"},
        {"parent": "'1'"},
        {"type": "x'c1'"},
        {"type": "7"},
        {"type": "'bytes'", "checkpoint": "1000000000000"},
        {"checkpoint": "7"},
        {"checkpoint": "'text'"},
        {"metadata": "7"},
        {"metadata": "x'ff'"},
    ],
)
def test_an_odd_row_harms_no_other_thread(plain: Path, tmp_path: Path, odd: dict[str, str]) -> None:
    path = shutil.copy(plain, tmp_path)
    with changed(path, COPY.format(**SAME | odd)) as backend:
        assert names(backend, "/plain/head") == ["a.txt", "c.txt", "second.txt"]
        assert "plain" in names(backend, "/")
        assert backend.glob("**/*.txt").error is None
        assert "/plain/head/a.txt" in [match["path"] for match in backend.grep("three").matches or ()]
        for thread_ in names(backend, "/"):
            for name in history(backend, f"/{thread_}"):
                names(backend, f"/{thread_}/history/{name}")
            for name in ("state.json", "messages.jsonl"):
                assert backend.download_files([f"/{thread_}/{name}"])[0].content is not None


@pytest.mark.parametrize("column", ["thread_id", "checkpoint_id"])
def test_a_blob_as_an_id_is_told_and_left_out(path: str, column: str, caplog: pytest.LogCaptureFixture) -> None:
    odd = {"thread_id": {"thread": "x'c1'"}, "checkpoint_id": {"thread": "'plain'", "id": "x'c1'"}}[column]
    with changed(path, COPY.format(**SAME | odd)) as backend:
        assert names(backend, "/") == ["plain"] and len(history(backend, "/plain")) > 3
    assert f"has a {column} that is no text" in caplog.text


@for_each("change", ["task_id = x'c1'", "idx = 'odd'", "channel = x'c1'", "checkpoint_id = x'c1'"])
def test_a_write_with_an_odd_id_is_left_out(plain: Path, tmp_path: Path, change: str) -> None:
    path = shutil.copy(plain, tmp_path)
    with changed(
        path, f"UPDATE OR IGNORE writes SET {change} WHERE rowid = (SELECT max(rowid) FROM writes)"
    ) as backend:
        assert names(backend, "/") == ["plain"]
        assert names(backend, "/plain/head") and text(backend, "/plain/state.json")


@for_each("segments", [300, 600, 1000, 100_000])
@for_each("slash", ["", "/"])
def test_a_path_of_many_segments_is_one_file_among_others(
    tmp_path: Path, segments: int, slash: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = str(tmp_path / "threads.db")
    key = slash + "a/" * (segments - 1) + "deep"
    with graphs.sqlite_saver(where) as saver:
        agent = graphs.deep_agent(saver, [say("ok")])
        files = {key: {"content": "far"}, "/near.txt": {"content": "near"}, key + "/" + "b/" * 400: {"content": "x"}}
        agent.invoke(user("go", files=files), thread("t"))
    for write_ in (None, "head"):
        with ThreadsBackend.from_sqlite(where, **({} if write_ is None else {"write": write_})) as backend:
            shown = names(backend, "/t/head")
            assert len(shown) == 3 and "near.txt" in shown
            found = {info["path"]: info for info in backend.glob("/t/head/**").matches or ()}
            assert len(found) == 3
            assert sorted(text(backend, found_path) for found_path in found) == ["far", "near", "x"]
            assert [match["text"] for match in backend.grep("near", "/t/head").matches or ()] == ["near"]
            assert len(history(backend, "/t")) > 1
    assert f"a path of {segments} segments is shown as one name" in caplog.text


# -- one file --------------------------------------------------------------------------------------------------------


@for_each(
    ("record", "says"),
    [
        (7, "must be a mapping, not int"),
        ({}, "has no 'content'"),
        ({"content": 7}, "content must be a string"),
        ({"content": ["a", 1]}, "lines must be strings"),
        ({"content": "x", "encoding": "rot13"}, "unknown encoding 'rot13'"),
        ({"content": "#", "encoding": "base64"}, "not valid base64"),
    ],
)
def test_a_file_that_is_no_file_data_is_listed_and_cannot_be_opened(tmp_path: Path, record: Any, says: str) -> None:
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver:
        agent = graphs.deep_agent(saver, [use(write("/good.txt", "good")), say("ok")])
        agent.invoke(user("go", files={"/bad.txt": record}), thread("t"))
    with ThreadsBackend.from_sqlite(where) as backend:
        assert names(backend, "/t/head") == ["bad.txt", "good.txt"]
        for result in (backend.download_files(["/t/head/bad.txt"])[0], backend.read("/t/head/bad.txt")):
            assert says in (result.error or "")
        assert text(backend, "/t/head/good.txt") == "good"
        found = backend.grep("good", "/t/head")
        assert [match["path"] for match in found.matches or ()] == ["/t/head/good.txt"]
        assert found.truncated
        assert says in (found.missing or "")
        node = node_at(backend.volume, "/t/head/bad.txt")
        assert says in backend.volume.getxattr(node, b"user.fusebackend.error").decode()
        assert backend.volume.listxattr(node) == [b"user.fusebackend.error"]


# -- the database ------------------------------------------------------------------------------------------------------


def table(columns: str) -> Callable[[Path], None]:
    """A function that makes a database with one table."""

    def make(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {columns}")

    return make


@for_each(
    ("make", "says"),
    [
        (lambda path: None, "there is no file"),
        (Path.mkdir, "is not a regular file"),
        (Path.touch, "is an empty file"),
        (lambda path: path.write_text("no database, but long enough to have its header " * 3), "is no SQLite database"),
        (table("notes (id)"), "it has no table 'checkpoints'"),
        (table("checkpoints (thread_id, checkpoint_ns, checkpoint_id)"), "lacks 'checkpoint'"),
    ],
)
def test_what_is_no_checkpoint_database_is_one_line(tmp_path: Path, make: Callable[[Path], None], says: str) -> None:
    path = tmp_path / "some.db"
    make(path)
    with pytest.raises(UrlError, match=rf"^[^\n]*{path}[^\n]*{says}[^\n]*$"):
        open_backend(f"threads+sqlite:{path}")


def test_tables_that_vanish_are_an_error_of_each_verb_and_come_back(path: str) -> None:
    with ThreadsBackend.from_sqlite(path) as backend:
        assert names(backend, "/") == ["plain"]
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE checkpoints RENAME TO elsewhere")
        assert "can't be read" in (backend.read("/plain/head/a.txt").error or "")
        assert backend.ls("/plain").error is not None
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE elsewhere RENAME TO checkpoints")
        assert text(backend, "/plain/head/a.txt") == "three\n"


def test_a_database_that_cannot_be_written_to_is_read(path: str, tmp_path: Path) -> None:
    copy = tmp_path / "readonly"
    copy.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(path, copy / "threads.db")
    (copy / "threads.db").chmod(0o444)
    with ThreadsBackend.from_sqlite(str(copy / "threads.db")) as backend:
        assert names(backend, "/plain/head") == ["a.txt", "c.txt", "second.txt"]


SOMEBODY_ELSE = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def test_somebody_elses_database_is_read_and_followed() -> None:
    """In WAL mode, by who may not write to its directory: SQLite needs a trick while nobody has it open."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    if subprocess.run([*SOMEBODY_ELSE, sys.executable, "-V"], capture_output=True).returncode != 0:
        pytest.skip("this Python is in a directory that is closed to all but root")
    with tempfile.TemporaryDirectory() as directory:  # pytest's own is closed to others
        Path(directory).chmod(0o755)
        path = f"{directory}/threads.db"
        with graphs.sqlite_saver(path) as saver:
            threadcases.plain(saver)
        follow_as_somebody_else(path)


def follow_as_somebody_else(path: str) -> None:
    program = (
        "import sys\n"
        "from fusebackend.backends import ThreadsBackend\n"
        f"backend = ThreadsBackend.from_sqlite({path!r})\n"
        "for line in sys.stdin:\n"
        "    print([entry['path'] for entry in backend.ls('/').entries or []], flush=True)\n"
    )
    command = [*SOMEBODY_ELSE, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def seen() -> str:
            print("look", file=reader.stdin, flush=True)
            return reader.stdout.readline().strip()

        assert seen() == "['/plain/']"
        with graphs.sqlite_saver(path) as saver:
            threadcases.old(saver)
            assert seen() == "['/old/', '/plain/']"
        with graphs.sqlite_saver(path) as saver:
            saver.delete_thread("plain")
        deadline = time.monotonic() + LIMIT_S
        while seen() != "['/old/']":  # the counting that finds a deletion takes a twentieth of the time at most
            assert time.monotonic() < deadline
        reader.stdin.close()


def test_a_table_without_task_paths_is_that_of_an_older_saver(path: str) -> None:
    older = [
        "CREATE TABLE w AS SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value"
        " FROM writes",
        "DROP TABLE writes",
        "ALTER TABLE w RENAME TO writes",
    ]
    with changed(path, *older) as backend:
        assert names(backend, "/plain/head") == ["a.txt", "c.txt", "second.txt"]


# -- one part of a checkpoint ----------------------------------------------------------------------------------------

MANY: Final = [0] * 3000
"""More values than one piece of MessagePack may have in these tests. `test_threads_parts.py` has the true bound."""

BROKEN: Final = msgspec.msgpack.Ext(5, b"\xc1")


class Stored(NamedTuple):
    """A thread whose checkpoints have all of their files and messages, and its database."""

    kind: str
    where: str

    def opened(self) -> ThreadsBackend:
        return threadcases.reader(self.kind, self.where, cache=False)


def rewrite(stored: Stored, channel: str, change: Callable[[Any], Any], mark: bytes = b"") -> None:
    """Change the value of a channel in all checkpoints of a thread, as LangGraph stores it. `mark` becomes bytes that
    are no UTF-8."""

    def changed_bytes(data: bytes) -> bytes:
        value = msgspec.msgpack.encode(change(msgspec.msgpack.decode(data, strict=False)))
        return value.replace(mark, b"\xff" * len(mark)) if mark else value

    if stored.kind == "postgres":
        with psycopg.connect(stored.where) as connection:
            rows = connection.execute(
                "SELECT version, blob FROM checkpoint_blobs WHERE channel = %s AND type = 'msgpack'", (channel,)
            ).fetchall()
            for version, blob in rows:
                connection.execute(
                    "UPDATE checkpoint_blobs SET blob = %s WHERE channel = %s AND version = %s",
                    (changed_bytes(blob), channel, version),
                )
        return
    with contextlib.closing(sqlite3.connect(stored.where)) as connection:
        for rowid, blob in connection.execute("SELECT rowid, checkpoint FROM checkpoints").fetchall():
            document = msgspec.msgpack.decode(blob)
            values = document["channel_values"]
            if channel in values:
                values[channel] = msgspec.Raw(changed_bytes(msgspec.msgpack.encode(values[channel])))
                connection.execute(
                    "UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (msgspec.msgpack.encode(document), rowid)
                )
        connection.commit()


ODD_FILES: Final[dict[str, tuple[Any, str]]] = {
    "too large": ({"content": MANY}, "MessagePack with more than 500,000 values"),
    "no text": ({"content": "@@@@@@"}, "not valid MessagePack"),
    "no file data": (5, "must be a mapping"),
}


@pytest.fixture(params=threadcases.KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(values, "_PACK", values._PACK._replace(most=1000, few_bytes=100))
    monkeypatch.setattr(values, "MAX_MEMBERS", 1000)
    where = threadcases.where_of(request, request.param, tmp_path)
    with threadcases.bench(request.param, where) as b:
        threadcases.old(b.saver)
    return Stored(request.param, where)


def test_one_odd_file_is_an_error_and_hides_no_other(stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    files = {f"/odd/{name}": record for name, (record, _) in ODD_FILES.items()}
    rewrite(stored, "files", lambda value: {**value, **files, 7: {"content": "x"}}, mark=b"@@@@@@")
    with stored.opened() as backend:
        newest = f"/old/history/{history(backend, '/old')[-1]}"
        for directory in ("/old/head", newest):
            assert names(backend, directory) == ["a.txt", "d.txt", "in.txt", "odd", "relative.md"]
            assert text(backend, f"{directory}/a.txt") == "changed"
            assert names(backend, f"{directory}/odd") == sorted(ODD_FILES)
            for case in each(ODD_FILES):
                with case as (_, says):
                    name = case.name
                    assert backend.download_files([f"{directory}/odd/{name}"])[0].error
                    node = node_at(backend.volume, f"{directory}/odd/{name}")
                    assert says in backend.volume.getxattr(node, b"user.fusebackend.error").decode()
        assert len(text(backend, "/old/messages.jsonl").splitlines()) > 2
        assert len(names(backend, "/old/changes")) > 2
    assert caplog.text.count("'files' has the key '7', which is no text; not shown") == 1


def test_one_odd_message_says_so_in_its_place(stored: Stored) -> None:
    with stored.opened() as before:
        expected = text(before, "/old/messages.jsonl").splitlines()
    odd = [BROKEN, 5, {"type": "human", "content": MANY}]
    rewrite(stored, "messages", lambda value: [value[0], *odd, *value[1:]])
    with stored.opened() as backend:
        first, *found, second = text(backend, "/old/messages.jsonl").splitlines()[: len(odd) + 2]
        assert [first, second] == expected[:2]
        assert [json.loads(line)["type"] for line in found] == ["unreadable"] * len(odd)
        for line, says in zip(found, ("not valid MessagePack", "no object but int", "more than 500,000"), strict=True):
            assert says in json.loads(line)["error"]
        assert names(backend, "/old/messages")[1:4] == [f"000{number}-unreadable.md" for number in (2, 3, 4)]
        assert "more than 500,000" in text(backend, "/old/messages/0004-unreadable.md")
        assert names(backend, "/old/head") == ["a.txt", "d.txt", "in.txt", "relative.md"]


def test_one_odd_channel_says_so_and_hides_no_file_message_or_step(stored: Stored) -> None:
    with stored.opened() as before:
        expected = [text(before, "/old/messages.jsonl"), names(before, "/old/head"), history(before, "/old")]
    rewrite(stored, "updates", lambda value: MANY)
    with stored.opened() as backend:
        assert [text(backend, "/old/messages.jsonl"), names(backend, "/old/head"), history(backend, "/old")] == expected
        state = json.loads(text(backend, "/old/state.json"))
        assert "more than 500,000 values" in state["values"]["updates"]["error"]
        rewrite(stored, "files", lambda value: MANY)
    with stored.opened() as backend:
        assert "more than 500,000 values" in text(backend, "/old/head/ERROR.txt")
        assert text(backend, "/old/messages.jsonl") == expected[0]


def rewrite_newest(stored: Stored, change: dict[str, Any] | list[int], before: int = 0) -> None:
    """Change parts of the newest checkpoint, or of one before it; or put a list in its place."""
    at = f"checkpoint_id = (SELECT checkpoint_id FROM checkpoints ORDER BY 1 DESC LIMIT 1 OFFSET {before})"
    ask = f"SELECT checkpoint FROM checkpoints WHERE {at}"
    if stored.kind == "postgres":
        with psycopg.connect(stored.where) as connection:
            ((document,),) = connection.execute(ask).fetchall()
            written = json.dumps({**document, **change} if isinstance(change, dict) else change)
            connection.execute(f"UPDATE checkpoints SET checkpoint = %s::jsonb WHERE {at}", (written,))
        return
    with contextlib.closing(sqlite3.connect(stored.where)) as connection:
        ((data,),) = connection.execute(ask).fetchall()
        written = {**msgspec.msgpack.decode(data), **change} if isinstance(change, dict) else change
        connection.execute(f"UPDATE checkpoints SET checkpoint = ? WHERE {at}", (msgspec.msgpack.encode(written),))
        connection.commit()


@for_each("pruned", [None, 5, [["files"]], ["gone", 7]])
def test_what_a_checkpoint_has_lost_is_a_list_of_names_or_nothing(stored: Stored, pruned: Any) -> None:
    rewrite_newest(stored, {"pruned": pruned})
    with stored.opened() as backend:
        assert names(backend, "/old/head") == ["a.txt", "d.txt", "in.txt", "relative.md"]
        lost = [
            name for name, value in json.loads(text(backend, "/old/state.json"))["values"].items() if "error" in value
        ]
        assert lost == (["gone"] if pruned == ["gone", 7] else [])


def test_a_checkpoint_whose_versions_are_no_mapping_is_not_shown_as_empty(stored: Stored) -> None:
    rewrite_newest(stored, {"channel_versions": [1]})
    with stored.opened() as backend:
        for directory in ("/old/head", f"/old/history/{history(backend, '/old')[-1]}"):
            assert names(backend, directory) == ["ERROR.txt"]
            assert "'channel_versions' is list, no mapping" in text(backend, f"{directory}/ERROR.txt")
        assert "'channel_versions' is list" in json.loads(text(backend, "/old/state.json"))["error"]
        assert (
            "'channel_versions' is list" in json.loads(text(backend, "/old/messages.jsonl").splitlines()[-1])["error"]
        )


def test_a_channel_is_read_without_all_else_of_its_checkpoints_and_a_whole_one_once(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata may have megabytes, and a walk reads all links of a line."""
    metadata = json.dumps({"step": 1, "mark": "METADATA"})
    if stored.kind == "postgres":
        with psycopg.connect(stored.where) as connection:
            connection.execute("UPDATE checkpoints SET metadata = %s::jsonb", (metadata,))
    else:
        with changed(stored.where, "UPDATE checkpoints SET metadata = ?", values=(metadata.encode(),)):
            pass
    with stored.opened() as backend:
        database = backend.volume._database  # type: ignore[attr-defined]
        place, rows = Place("old", ""), []
        checkpoints = sorted(database.marks(place))

        def recorded(real: Callable[..., Any]) -> Callable[..., Any]:
            def asked(*arguments: Any, **values: Any) -> Any:
                found = real(*arguments, **values)
                rows.append(repr(found))
                return found

            return asked

        for word in ("_ask", "_ask_among"):
            monkeypatch.setattr(database, word, recorded(getattr(database, word)))
        assert len(database.links(place, checkpoints, "files")) == len(checkpoints) > 3
        assert not any("METADATA" in row for row in rows)
        if stored.kind == "postgres":
            assert not any("versions_seen" in row for row in rows)
        rows.clear()
        saved = database.saved(place, checkpoints[-1])
        assert saved.metadata["mark"] == "METADATA" and {"files", "messages"} <= saved.values.keys()
        assert "".join(rows).count("METADATA") == 1


def test_a_thread_is_looked_up_without_its_namespaces(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands. Those that are no text are not shown, but the thread is."""
    with changed(path, "UPDATE checkpoints SET checkpoint_ns = x'00'") as backend:
        monkeypatch.setattr(backend.volume._database, "namespaces", raising(AssertionError("asked")))  # type: ignore[attr-defined]
        assert backend.volume.lookup(ROOT_NODE, b"plain").node
    with ThreadsBackend.from_sqlite(path) as backend:
        assert names(backend, "/") == ["plain"]
        assert names(backend, "/plain")


def test_a_checkpoint_that_is_its_own_parent_ends_its_ancestry(stored: Stored) -> None:
    with threadcases.bench(stored.kind, stored.where) as b:
        threadcases.plain(b.saver)
    statement = "UPDATE checkpoints SET parent_checkpoint_id = checkpoint_id"
    if stored.kind == "postgres":
        with psycopg.connect(stored.where) as connection:
            connection.execute(statement)
    else:
        with changed(stored.where, statement):
            pass
    with stored.opened() as backend:
        assert names(backend, "/old/head") == ["a.txt", "d.txt", "in.txt", "relative.md"]
        assert names(backend, "/plain/head") == []  # as if all before it were gone


def test_a_checkpoint_in_json_that_is_too_large_lacks_its_large_channel_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_threads_parts.py` has the true bound."""
    monkeypatch.setattr(values, "_JSON", values._JSON._replace(most=1 << 16))
    where = str(tmp_path / "threads.db")
    with graphs.sqlite_saver(where) as saver:
        threadcases.old(saver)
    document = {
        "id": "1",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {
            "files": {"/a.txt": {"content": "small"}, "/b.txt": {"content": "x" * (1 << 17)}},
            "messages": [{"type": "human", "content": "hello"}],
            "huge": "y" * (1 << 17),
        },
        "channel_versions": {"files": 1, "messages": 1, "huge": 1},
    }
    statement = f"UPDATE checkpoints SET type = 'json', checkpoint = ? WHERE {NEWEST}"
    with changed(where, statement, values=(json.dumps(document),)) as backend:
        newest = f"/old/history/{history(backend, '/old')[-1]}"
        assert names(backend, newest) == ["a.txt", "b.txt"]
        assert text(backend, f"{newest}/a.txt") == "small"
        assert backend.download_files([f"{newest}/b.txt"])[0].error
        assert json.loads(text(backend, f"{newest}.messages.jsonl"))["content"] == "hello"
        assert "more than 16 MiB" in json.loads(text(backend, f"{newest}.state.json"))["values"]["huge"]["error"]


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


def test_a_server_without_the_tables_or_not_there(postgres_dsn: str) -> None:
    for place, words in {
        postgres_dsn: "it has no table 'checkpoints'",
        "host=/nowhere user=x password=hunter2": r"PostgreSQL: .* No such file",
        "no words of libpq": "missing",
    }.items():
        with pytest.raises(UrlError, match=words) as caught:
            open_backend(f"threads+postgres:{place}")
        assert "hunter2" not in str(caught.value)


def test_a_checkpoint_that_is_no_mapping_hides_none_that_follow_from_it(postgres_dsn: str) -> None:
    with graphs.postgres_saver(postgres_dsn) as saver:
        threadcases.plain(saver)
    rewrite_newest(Stored("postgres", postgres_dsn), [1], before=2)
    with ThreadsBackend.from_postgres(postgres_dsn, cache=False) as backend:
        newest = history(backend, "/plain")[-1]
        for directory in ("/plain/head", f"/plain/history/{newest}"):
            assert names(backend, directory) == ["a.txt", "c.txt", "second.txt"]


def test_a_value_of_none_is_a_value(postgres_dsn: str) -> None:
    graph = StateGraph(TypedDict("State", {"messages": Any}))
    for number, value in enumerate([[{"role": "user", "content": "hi", "id": "1"}], None]):
        graph.add_node(str(number), lambda state, value=value: {"messages": value})
    graph.add_edge(START, "0")
    graph.add_edge("0", "1")
    with graphs.postgres_saver(postgres_dsn) as saver:
        graph.compile(checkpointer=saver).invoke({"messages": []}, threadcases.thread("none"))
    with ThreadsBackend.from_postgres(postgres_dsn, cache=False) as backend:
        assert text(backend, "/none/messages.jsonl") == ""


def test_an_error_of_a_value_that_is_kept_apart_names_its_checkpoint(postgres_dsn: str) -> None:
    with graphs.postgres_saver(postgres_dsn) as saver:
        threadcases.old(saver)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("UPDATE checkpoint_blobs SET blob = '\\xc1' WHERE channel = 'updates' AND type = 'msgpack'")
    with ThreadsBackend.from_postgres(postgres_dsn, cache=False) as backend:
        error = json.loads(text(backend, "/old/state.json"))["values"]["updates"]["error"]
        assert re.search("checkpoint 1f[0-9a-f-]{34}: 'updates': not valid MessagePack", error)


def test_a_snapshot_whose_blob_is_gone_is_told(postgres_dsn: str) -> None:
    with graphs.postgres_saver(postgres_dsn) as saver:
        deltas(saver)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DELETE FROM checkpoint_blobs WHERE channel = 'files'")
    with ThreadsBackend.from_postgres(postgres_dsn) as backend:
        assert "'files' is no mapping but bool" in text(backend, "/deltas/head/ERROR.txt")


def test_what_is_closed_is_not_connected_to_again(postgres_dsn: str) -> None:
    """A cancelled search goes on in its thread for a moment, and asks when the backend has been closed."""
    with graphs.postgres_saver(postgres_dsn) as saver:
        threadcases.plain(saver)
    with contextlib.closing(PostgresDatabase(postgres_dsn)) as database:
        assert database.threads()
    for call in (database.threads, lambda: database.exclusive().__enter__()):
        with pytest.raises(OSError, match="closed"):
            call()
    with psycopg.connect(postgres_dsn) as connection:
        count = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'fusebackend' AND datname = current_database()"
        )
        eventually(lambda: connection.execute(count).fetchone() == (0,), 60)


def test_a_server_that_restarts_is_connected_to_again(postgres: Any, postgres_dsn: str) -> None:
    with graphs.postgres_saver(postgres_dsn) as saver:
        threadcases.plain(saver)
    with ThreadsBackend.from_postgres(postgres_dsn) as backend:
        assert text(backend, "/plain/head/a.txt") == "three\n"
        database = postgres_dsn.rpartition("dbname=")[2]
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
        backend.volume.follow()
        assert text(backend, "/plain/head/c.txt") == ""
