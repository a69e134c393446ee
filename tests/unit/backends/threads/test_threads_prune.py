"""Pruning: what stays reads as before, by LangGraph and by this package, and goes on as if nothing had gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import graphs
import pytest
import threadcases
from click.testing import CliRunner
from graphs import say, thread, use, user, write
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from live import live
from nodes import node_at
from profiles import amount
from test_threads_model import DEEDS, after_each, deltas, lasting
from threadcases import Bench, bench
from together import beside

from fusebackend.backends import InMemoryBackend
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads import prune as prune_module
from fusebackend.backends.threads.database import sqlite
from fusebackend.backends.threads.database.rows import CheckpointMark, Outline, Place
from fusebackend.backends.threads.database.sql import SaverTables
from fusebackend.backends.threads.prune import Keep, plan, prune
from fusebackend.cli.main import main
from fusebackend.protocol import PrunedThread
from fusebackend.testing.posix.case import refused

__all__ = ["lasting"]  # a fixture

HOUR_NS = 3600 * 10**9

NEWEST = Keep()


def database(b: Bench) -> SaverTables:
    found = b.backend.volume._database
    assert isinstance(found, SaverTables)
    return found


def later() -> int:
    """An hour from now: no checkpoint is young."""
    return time.time_ns() + HOUR_NS


def pruned(b: Bench, name: str, keep: Keep = NEWEST, **options: Any) -> PrunedThread:
    return prune(database(b), name, keep, now_ns=later, sleep=lambda seconds: None, **options)


def copy(b: Bench, name: str, twin: str) -> None:
    """Store a thread once more, under another id."""
    base = database(b)
    with base.changing() as execute:
        for table in base.dialect.tables:
            columns = base.dialect.tables[table].replace("thread_id ", "")
            if table == base.dialect.writes:
                columns += " task_path"
            names = ", ".join(columns.split())
            copied = (
                f"INSERT INTO {table} (thread_id, {names}) SELECT :twin, {names} FROM {table} WHERE thread_id = :name"
            )
            execute(base.dialect.placeholders(copied), twin=twin, name=name)


def seen(graph: Any, name: str, checkpoint: str | None = None, namespace: str = "") -> Any:
    """All that LangGraph says of a checkpoint, and the writes to it."""
    config = thread(name) if checkpoint is None else thread(name, checkpoint_ns=namespace, checkpoint_id=checkpoint)
    state, saved = graph.get_state(config, subgraphs=True), graph.checkpointer.get_tuple(config)
    waiting = [item.value for item in state.interrupts]
    return state.values, state.next, waiting, state.metadata, state.created_at, saved and saved.pending_writes


def check_links(graph: Any, name: str, before: dict[str, Any]) -> None:
    """LangGraph finds of a link what it found before, or nothing, and its metadata names what is lost."""
    for id_ in graphs.checkpoint_ids(graph, thread(name)):
        values, _, _, metadata, *_ = seen(graph, name, id_)
        lost = metadata.get("pruned", ())
        assert values == {
            channel: type(value)() if channel in lost else value
            for channel, value in before[id_][0].items()
            if channel in values or channel not in lost
        }, id_


def goes_on(graph: Any, name: str) -> Any:
    """Five more steps, some of sub-graphs, and what they end in. Ids and times differ."""
    found = []
    for number in range(5):
        update = {"files": {f"/{number}": threadcases.record("x")}, "todo": []}
        with contextlib.suppress(RuntimeError):
            graph.update_state(thread(name), update, as_node="next")
        with contextlib.suppress(RuntimeError):
            graph.invoke({"todo": [[["own", "ask"], ["inherits", {f"/{number}": None}]]]}, thread(name))
        state = graph.get_state(thread(name), subgraphs=True)
        inside = [task.state.values for task in state.tasks if task.state is not None]
        found.append((state.values, state.next, [item.value for item in state.interrupts], inside))
    return found


def history(b: Bench, graph: Any, name: str) -> dict[str, tuple[dict[str, bytes], bytes | None]]:
    """The files and the conversation of each checkpoint that this package shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "COUNTING_SHARE", 1e9)  # in a large database deletions are looked for less often
        b.backend.volume.follow()
    ids = graphs.checkpoint_ids(graph, thread(name))
    return {
        id_: (b.tree(directory), b.get(f"{directory}.messages.jsonl"))
        for id_, directory in zip(ids, b.history(f"/{name}"), strict=True)
    }


def check_kept(before: Any, after: Any, whole: set[tuple[str, str]]) -> int:
    """A whole checkpoint is shown as before, and of a link nothing else. Returns how many values say that they can't
    be shown."""
    gone = 0
    for id_, parts in after.items():
        for part, expected in zip(parts, before[id_], strict=True):
            if part != expected:
                assert ("", id_) not in whole and b"it was pruned" in str(part).encode(), id_
                gone += 1
    return gone


@pytest.mark.parametrize("lasting", threadcases.KINDS, indirect=True)  # a saver of its own has no rows
@settings(max_examples=amount("FUSEBACKEND_PRUNED_HISTORIES", day=6, night=300))
@given(deeds=DEEDS, keep=st.integers(1, 4))
def test_what_stays_of_any_history_reads_as_before_and_goes_on(lasting: Bench, deeds: list[Any], keep: int) -> None:
    b, name, twin = lasting, uuid.uuid4().hex, uuid.uuid4().hex
    *_, graph = after_each(b, name, deeds)
    if not graphs.checkpoint_ids(graph, thread(name)):
        return
    copy(b, name, twin)
    going = plan(database(b).outline(name), Keep(keep), later())
    before = {key: seen(graph, name, key[1], key[0]) for key in [*going.whole, ("", None)]}
    every = {checkpoint: seen(graph, name, checkpoint) for checkpoint in graphs.checkpoint_ids(graph, thread(name))}
    shown = history(b, graph, name)
    assert pruned(b, name, Keep(keep)).checkpoints == going.checkpoints
    left = {id_ for namespace, id_ in {*going.whole, *going.links} if namespace == ""}
    assert set(graphs.checkpoint_ids(graph, thread(name))) == left
    assert {key: seen(graph, name, key[1], key[0]) for key in before} == before
    check_links(graph, name, every)
    check_kept(shown, history(b, graph, name), going.whole)
    assert b.tree(f"/{name}/head") == threadcases.shown(graphs.state_at(graph, thread(name)).get("files"))
    assert pruned(b, name, Keep(keep)).checkpoints == 0
    assert goes_on(graph, name) == goes_on(graph, twin)


STORIES = [threadcases.plain, threadcases.old, threadcases.a_subagent, threadcases.waiting_for_approval]


def unaccounted(b: Bench, name: str) -> int:
    """The bytes of a thread that belong to none of its checkpoints."""
    base = database(b)
    lines = base.outline(name)
    own = sum(row.bytes for rows in lines.values() for row in rows)
    beside = {
        (place, channel, row.versions[channel]): size
        for place, rows in lines.items()
        for row in rows
        for channel, size in row.blobs.items()
    }
    return (
        sum(size for (thread_id, _), size in base.weigh("step").items() if thread_id == name)
        - own
        - sum(beside.values())
    )


@pytest.mark.parametrize(
    ("b", "story"),
    [
        *itertools.product(["sqlite", "postgres"], STORIES),
        pytest.param("sqlite", threadcases.snapshots, marks=pytest.mark.night),  # by day random histories have some
    ],
    indirect=["b"],
)
def test_stories_of_deepagents_stay_as_they_are(b: Bench, story: Any) -> None:
    agent, name = story(b.saver), story.__name__
    every = {checkpoint: seen(agent, name, checkpoint) for checkpoint in graphs.checkpoint_ids(agent, thread(name))}
    before = {None: seen(agent, name), **dict(list(every.items())[-3:])}
    tree, shown = b.tree(f"/{name}/head"), history(b, agent, name)
    whole = plan(database(b).outline(name), Keep(3), later()).whole
    assert unaccounted(b, name) == 0
    dry = pruned(b, name, Keep(3), dry_run=True)
    assert pruned(b, name, Keep(3)) == dry
    assert {checkpoint: seen(agent, name, checkpoint) for checkpoint in before} == before
    check_links(agent, name, every)
    assert (check_kept(shown, history(b, agent, name), whole) > 0) is (story is threadcases.snapshots)
    assert b.tree(f"/{name}/head") == tree
    assert unaccounted(b, name) == 0


def rows(b: Bench, name: str) -> dict[str, int]:
    base = database(b)
    ask = base.dialect.placeholders("SELECT count(*) FROM {table} WHERE thread_id = :thread")
    with base.changing() as execute:
        return {table: execute(ask.replace("{table}", table), thread=name)[0][0] for table in base.dialect.tables}


def test_a_young_checkpoint_a_step_and_those_since_then_stay(b: Bench) -> None:
    agent = threadcases.plain(b.saver)
    ids = graphs.checkpoint_ids(agent, thread("plain"))
    base, lines = database(b), database(b).outline("plain")
    for keep, now_ns, expected in [
        (Keep(), time.time_ns(), set(ids)),
        (Keep(1, steps=frozenset({ids[2]})), later(), {ids[2], ids[-1]}),
        (Keep(1, steps=frozenset({"unknown"})), later(), {ids[-1]}),
        (Keep(len(ids) + 1), later(), set(ids)),
        (Keep(1, since_ns=time.time_ns() - HOUR_NS), later(), set(ids)),
    ]:
        assert {id_ for _, id_ in plan(lines, keep, now_ns).whole} == expected, keep
    assert base.outline("unknown") == {}
    refused(errno.ENOENT, pruned, b, "unknown")


def row(id_: str, parent: str | None = None, **more: Any) -> Outline:
    empty: Any = {"parents": {}, "versions": {}, "values": {}, "deltas": frozenset(), "writes": {}, "is_partial": False}
    known = {"ts": "2020-01-01T00:00:00+00:00", "version": 4, "bytes": 1, "blobs": {}, **empty, **more}
    return Outline(id=id_, parent=parent, **known)


FILES = {"versions": {"files": "1"}}
SEED = {**FILES, "values": {"files": 0}, "deltas": frozenset({"files"})}
BOTH = {"versions": {"files": "1", "messages": "1"}, "deltas": frozenset({"files", "messages"})}
TASKS = {"writes": {"__pregel_tasks": 0}}
PART: Any = {"is_partial": True}
LINE = [row("1"), row("2", "1"), row("3", "2")]


@pytest.mark.parametrize(
    ("lines", "whole", "links"),
    [
        ({"": LINE}, "3", ""),
        ({"": [row("1", **SEED), row("2", "1", **FILES), row("3", "2", **FILES)]}, "3", "1:files 2:files"),
        ({"": [row("1"), row("2", "1", **SEED), row("3", "2", **FILES)]}, "3", "2:files"),
        ({"": [row("1"), row("2", "1", **FILES), row("3", "2", **SEED)]}, "3", ""),
        ({"": [row("1"), row("2", "1", **BOTH), row("3", "2", **BOTH)]}, "3", "1:files+messages 2:files+messages"),
        (
            {"": [row("1", **SEED), row("2", "1", **BOTH, values={"messages": 0}), row("3", "2", **BOTH)]},
            "3",
            "1:files 2:files+messages",
        ),
        (
            {"": [row("1", **PART, **SEED), row("2", "1", **FILES), row("3", "2", **PART)]},
            "2",
            "1:files",
        ),
        ({"": [row("1", **SEED), row("2", "1"), row("3", "2")]}, "3", ""),
        ({"": [row("1"), row("2", "1"), row("3", "2", version=3)]}, "3", ""),
        (
            {"": [row("1"), row("2", "1", **TASKS), row("3", "2", version=3)]},
            "3",
            "2:__pregel_tasks",
        ),
        ({"": [row("1"), row("2", "1", **TASKS), row("3", "2")]}, "3", ""),
        ({"": [row("1"), row("2", "1", writes={"__interrupt__": 0}), row("3", "1")]}, "2 3", ""),
        ({"": [row("1"), row("2", "1", writes={"__interrupt__": 0}), row("3", "2")]}, "3", ""),
        ({"": [*LINE[:2], row("3", "2", ts="2020-01-02T00:00:00+00:00")], "sub": LINE}, "3 sub.3", ""),
        ({"": LINE, "sub:t": [row("1", parents={"": "2"}), row("2", "1", parents={"": "3"})]}, "3 sub:t.2", ""),
        (
            {"": LINE, "a:t": [row("1", parents={"": "3"})], "a:t|b:t": [row("9", parents={"": "3", "a:t": "1"})]},
            "3 a:t.1 a:t|b:t.9",
            "",
        ),
        (
            {"": LINE, "a:t": [row("1", parents={"": "2"}, writes={"__interrupt__": 0})]},
            "2 3 a:t.1",
            "",
        ),
        ({"": [row("1", ts=None), *LINE[1:]]}, "1 3", ""),  # nobody knows how old it is
        ({"sub:t": LINE}, "", ""),
    ],
)
def test_a_plan(lines: dict[str, list[Outline]], whole: str, links: str) -> None:
    def shown(keys: Collection[tuple[str, str]]) -> str:
        return " ".join(sorted(f"{namespace}.{id_}".removeprefix(".") for namespace, id_ in keys))

    going = plan({Place("t", namespace): rows for namespace, rows in lines.items()}, NEWEST, time.time_ns())
    found = {f"{shown([key])}:{'+'.join(sorted(channels))}" for key, channels in going.links.items()}
    assert (shown(going.whole), " ".join(sorted(found))) == (whole, links)
    if whole:
        gone = [(place.namespace, one.id) for place, portions in going.portions for one in portions if one.left is None]
        every = [(namespace, row.id) for namespace, rows in lines.items() for row in rows]
        assert sorted([*gone, *going.whole, *going.links]) == sorted(every)


def test_a_link_loses_what_nothing_follows_from() -> None:
    sized: Any = {"values": {"files": 5, "messages": 7}, "writes": {"files": 1, "messages": 2, "other": 4}}
    line = [row("1", **BOTH, **sized, blobs={"messages": 9}, bytes=100), row("2", "1", **BOTH, values={"messages": 3})]
    going = plan({Place("t", ""): line}, NEWEST, time.time_ns())
    ((_, (portion,)),) = going.portions
    assert portion == ("1", {"files"}, ["messages", "other"], [], [], 13)
    assert (going.checkpoints, going.bytes, going.held_bytes) == (0, 13, 87)
    line[0] = row("1", **{**sized, "values": {"files": 5}, "writes": {"files": 1}}, versions={"files": "1"})
    assert plan({Place("t", ""): line}, NEWEST, time.time_ns()).portions == []  # it has lost that already


def test_blobs_go_with_the_last_checkpoint_that_has_them() -> None:
    sized: Any = {"blobs": {"a": 5, "b": 7}}
    line = [
        row("1", versions={"a": "1", "b": "1"}, **sized),
        row("2", "1", versions={"a": "1", "b": "2"}, **sized),
        row("3", "2", versions={"a": "1", "b": "2"}, **sized),
        row("4", "3", versions={"a": "1", "b": "3"}, **sized),
    ]
    ((_, portions),) = plan({Place("t", ""): line}, NEWEST, time.time_ns()).portions
    assert [(portion.id, portion.orphans, portion.blobs, portion.bytes) for portion in portions] == [
        ("3", ["4"], [], 1),
        ("2", [], [("b", "2")], 8),
        ("1", [], [("b", "1")], 8),
    ]


@pytest.mark.parametrize("kind", threadcases.KINDS)
def test_sizes_are_exact_where_links_lose_channels_and_nothing_goes(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    where = threadcases.where_of(request, kind, tmp_path)
    with bench(kind, where) as b:
        threadcases.plain(b.saver)
        before = b.tree("/plain/history")
        gone = pruned(b, "plain")
        assert gone.checkpoints == 0 < gone.links
        b.backend.volume.follow()  # PostgreSQL is asked for news 20 times a second
        after = b.tree("/plain/history")
        assert before.keys() == after.keys()
        assert before != after
        with threadcases.reader(kind, where) as later:
            assert Bench(b.saver, later).tree("/plain/history") == after


@pytest.mark.parametrize("story", [threadcases.old, deltas])
def test_a_kill_at_any_statement_leaves_what_stays_readable(b: Bench, story: Any) -> None:
    name = story.__name__
    agent = story(b.saver)
    before, base = seen(agent, name), database(b)
    copy(b, name, "whole")
    assert (pruned(b, "whole").links > 0) is (story is deltas)
    changing = base.changing

    @contextlib.contextmanager
    def until_killed() -> Iterator[Any]:
        with changing() as execute:

            def one_more(*arguments: Any, **values: Any) -> Any:
                if next(executed) == last:
                    raise KeyboardInterrupt
                return execute(*arguments, **values)

            yield one_more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "changing", until_killed)
        for last in range(1000):
            executed = itertools.count()
            try:
                pruned(b, name)
            except KeyboardInterrupt:
                assert seen(agent, name) == before, last
            else:
                break
    assert last > 5
    assert seen(agent, name) == before
    assert rows(b, name) == rows(b, "whole")


@pytest.mark.parametrize("kind", threadcases.KINDS)
@pytest.mark.parametrize("story", [threadcases.old, deltas])
def test_asynchronous_savers_find_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, story: Any, kind: str
) -> None:
    name, where = story.__name__, threadcases.where_of(request, kind, tmp_path)
    with bench(kind, where) as b:
        agent = story(b.saver)
        ids = graphs.checkpoint_ids(agent, thread(name))[-3:]
        before = [agent.get_state(thread(name, checkpoint_ns="", checkpoint_id=id_)).values for id_ in ids]
        pruned(b, name, Keep(3))

    async def found() -> list[Any]:
        opened = AsyncSqliteSaver if kind == "sqlite" else AsyncPostgresSaver
        async with opened.from_conn_string(where) as saver:
            agent.checkpointer = saver
            at = [thread(name, checkpoint_ns="", checkpoint_id=id_) for id_ in ids]
            return [(await agent.aget_state(config)).values for config in at]

    assert asyncio.run(found()) == before


def test_a_checkpoint_that_somebody_went_on_from_meanwhile_is_planned_again(b: Bench) -> None:
    agent = deltas(b.saver)
    old = graphs.checkpoint_ids(agent, thread("deltas"))[2]
    base = database(b)
    outline, asked = base.outline, []

    def then_fork(name: str) -> Any:
        found = outline(name)
        if not asked:
            agent.update_state(thread(name, checkpoint_ns="", checkpoint_id=old), {"files": {}}, as_node="next")
        asked.append(seen(agent, name))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "outline", then_fork)
        pruned(b, "deltas")
    assert [seen(agent, "deltas")] * 2 == asked  # planned twice


def test_agents_write_all_the_while_and_two_prune_at_once(b: Bench, tmp_path: Path) -> None:
    agent = threadcases.plain(b.saver)
    base = database(b)

    def write_on() -> None:
        for number in range(20):
            agent.update_state(thread("writer"), {"messages": [("user", str(number))]}, as_node="model")

    def prune_too() -> None:
        with contextlib.closing(base.again()) as other:
            prune(other, "plain", Keep(2), now_ns=later)

    before = seen(agent, "plain")
    with beside(write_on), beside(prune_too):
        prune(base, "plain", Keep(2), now_ns=later)
    assert seen(agent, "plain") == before
    assert len(graphs.checkpoint_ids(agent, thread("writer"))) == 20


def test_the_disk_has_its_space_back_after_a_vacuum(tmp_path: Path) -> None:
    """Of a thread of which snapshots and versions of the files take nearly all."""
    path = tmp_path / "threads.db"
    with bench("sqlite", str(path)) as b:
        script = [use(write(f"/{number}.txt", "many words " * 400)) for number in range(80)]
        graphs.deep_agent(b.saver, [*script, say("done")]).invoke(user("go"), thread("long"))
        shown = ["/long/head", *b.history("/long")[-9:]]
        before = [b.tree(directory) for directory in shown]
        b.saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = path.stat().st_size
        gone = pruned(b, "long", Keep(10)).bytes
        database(b).vacuum()
        b.backend.volume.follow()
        assert [b.tree(directory) for directory in shown] == before
        assert size - path.stat().st_size > 0.9 * gone > 0
        assert path.stat().st_size <= size / 2
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("by", ["channel", "step", "namespace"])
def test_sizes_are_the_same_however_a_thread_is_taken_apart(b: Bench, by: str) -> None:
    threadcases.a_subagent(b.saver)
    weighed = {way: database(b).weigh(way) for way in (by, "step")}
    told = [line.split("\t") for line in (b.get("/a_subagent/space.tsv") or b"").decode().splitlines()[1:]]
    assert {(name, int(size)) for way, name, size in told if way == by} == {
        (one.name, one.bytes) for one in prune_module.weighed(database(b), ["a_subagent"], by)
    }
    assert b.backend.ls("/a_subagent/subgraphs").entries
    assert {thread_id for thread_id, _ in weighed[by]} == {"a_subagent"}
    assert len({sum(sizes.values()) for sizes in weighed.values()}) == 1


def test_a_checkpoint_that_goes_while_a_thread_is_read_is_passed_over(b: Bench) -> None:
    threadcases.old(b.saver)
    base = database(b)
    marks, before = base.marks, base.outline("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "marks", lambda place: {**marks(place), "gone": CheckpointMark(1)})
        assert base.outline("old") == before


def test_the_commands_say_what_goes_and_what_stays(tmp_path: Path) -> None:
    path, run = str(tmp_path / "threads.db"), CliRunner().invoke
    with bench("sqlite", path) as b:
        for name in ("one", "two"):
            threadcases.old(b.saver, name)
        threadcases.age(b.saver)
        for arguments, status, said in [
            (["prune", path], 2, "give one of --keep and --older"),
            (["prune", path, "--older", "long"], 1, "'long' is no time"),
            (["prune", path, "--keep", "2"], 1, "add --yes"),
            (["prune", path, "three", "--keep", "2", "-n"], 1, "there is no thread 'three'"),
            (["du", path, "three"], 1, "there is no thread 'three'"),
            (["du", path, "--by", "channel"], 0, "(checkpoints)"),
            (["du", path], 0, "two"),
            (["prune", path, "one", "--keep", "2", "-n"], 0, "would delete"),
            (["prune", path, "one", "--older", "1d", "--yes", "--vacuum"], 0, "deleted"),
        ]:
            done = run(main, ["threads", *arguments])
            assert (done.exit_code, said in done.output) == (status, True), (arguments, done.output)
        left = {thread_id: size["bytes"] for size in json.loads(run(main, ["threads", "du", path, "--json"]).stdout)
                for thread_id in [size["thread"]]}  # fmt: skip
        assert left["one"] < left["two"]


@pytest.mark.parametrize("door", ["mount", "socket"])
def test_a_mount_weighs_and_prunes_its_threads_and_says_so_in_its_log(
    tmp_path: Path, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "threads.db")
    with contextlib.ExitStack() as stack:
        saver = stack.enter_context(graphs.sqlite_saver(path))
        agents = {name: threadcases.old(saver, name) for name in ("one", "two")}
        before = {name: seen(agent, name) for name, agent in agents.items()}
        routes = {"/threads/": ThreadsBackend.from_sqlite(path, write="head")}
        made = stack.enter_context(live(tmp_path, InMemoryBackend(), routes))
        files: Any = made.mount.face if door == "mount" else stack.enter_context(made.connect())
        monkeypatch.setattr(prune_module, "YOUNG_NS", -HOUR_NS)
        told: list[tuple[str, int, int]] = []
        for given, options, expected in [
            ([], {"keep": 1}, ValueError),
            (["/threads"], {}, ValueError),
            (["/threads"], {"keep": 1, "older": "30d"}, ValueError),
            (["/threads"], {"keep": 0}, ValueError),
            (["/threads"], {"keep": -1}, ValueError),
            (["/threads"], {"older": "soon"}, ValueError),
            (["/threads/one/head"], {"keep": 1}, ValueError),
            (["/threads/three"], {"keep": 1}, FileNotFoundError),
            (["/"], {"keep": 1}, OSError),
        ]:
            with pytest.raises(expected):
                files.prune_threads(*given, **options)
        sizes = {one.thread: one.bytes for one in files.weigh_threads("/threads")}
        assert sizes.keys() == before.keys()
        assert {one.name for one in files.weigh_threads("/threads/one", by="namespace")} == {""}
        steps = files.glob("*/history/*", "/threads").matches or []
        dry = files.prune_threads("/threads", keep=2, dry_run=True)
        assert files.log() == []
        assert files.prune_threads("/threads/one", keep=2, on_progress=lambda *done: told.append(done)) == [
            one for one in dry if one.thread == "one"
        ]
        assert (told[0], told[-1]) == (("one", 0, told[-1][1]), ("one", dry[0].checkpoints, dry[0].checkpoints))
        assert len(files.glob("*/history/*", "/threads").matches or []) == len(steps) - 2 * dry[0].checkpoints
        assert {one.thread: one.bytes for one in files.weigh_threads("/threads")} == {
            **sizes,
            "one": sizes["one"] - dry[0].bytes,
        }
        (call,) = files.log()
        (change,) = files.changes(call.call)
        assert (call.title, change.path) == ("prune_threads /threads/one", "/threads/one/checkpoints.tsv")
        assert "what was pruned is gone for good" in files.undo(call.call).conflicts[0].reason
        assert files.prune_threads("/threads", older="0s", keep_steps=["unknown"], vacuum=True)[1].kept == 1
        assert {name: seen(agent, name) for name, agent in agents.items()} == before


@pytest.mark.parametrize("kind", threadcases.KINDS)
@pytest.mark.parametrize("write_to", [None, "head"])
def test_rmdir_deletes_a_checkpoint_or_a_thread_where_that_is_allowed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, write_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = threadcases.where_of(request, kind, tmp_path)
    with bench(kind, where, prune="allow", write=write_to) as b, threadcases.reader(kind, where) as closed:
        agent, waiting = threadcases.old(b.saver), threadcases.waiting_for_approval(b.saver)
        ids, before = graphs.checkpoint_ids(agent, thread("old")), seen(agent, "old")
        graph = deltas(b.saver)

        def rmdir(path: str, backend: ThreadsBackend = b.backend) -> int:
            above, _, name = path.rpartition("/")
            try:
                backend.volume.rmdir(node_at(backend.volume, above), name.encode())
            except OSError as error:
                return error.errno or -1
            return 0

        def stems() -> list[str]:
            return [path.rpartition("-")[0] for path in b.history("/old")]  # the node was known to the parent alone

        steps, before_it = b.history("/old"), stems()
        assert rmdir(steps[2]) == errno.EBUSY  # young
        monkeypatch.setattr(prune_module, "YOUNG_NS", -HOUR_NS)
        for path, expected in [
            ("/none", errno.ENOENT), ("/old/head", errno.EROFS), ("/old/history", errno.EROFS),
            ("/old/messages.jsonl", errno.EROFS), (steps[-1], errno.EBUSY), ("/waiting_for_approval", errno.EBUSY),
            (b.history("/deltas")[-2], errno.EBUSY), (steps[2], 0), (steps[2], errno.ENOENT), (steps[0], 0),
        ]:  # fmt: skip
            assert rmdir(path) == expected, path
            assert rmdir(path, closed) in (errno.EROFS, errno.ENOENT)
        assert stems() == [before_it[1], *before_it[3:]]
        assert graphs.checkpoint_ids(agent, thread("old")) == [ids[1], *ids[3:]]
        assert seen(agent, "old") == before
        assert rmdir("/deltas") == rmdir("/old") == 0
        assert rows(b, "old") == rows(b, "deltas") == dict.fromkeys(rows(b, "old"), 0)
        assert [info["path"] for info in b.backend.ls("/").entries or []] == ["/waiting_for_approval/"]
        assert graphs.checkpoint_ids(graph, thread("deltas")) == []
        assert waiting.get_state(thread("waiting_for_approval")).interrupts


def test_a_saver_object_has_no_tables_to_prune(tmp_path: Path) -> None:
    backend = ThreadsBackend.from_saver(InMemorySaver())
    with live(tmp_path, backend) as made, made.connect() as files, pytest.raises(OSError, match="of a saver object"):
        files.weigh_threads("/")


JS: Final = Path(threadcases.__file__).parent / "langgraph_js"
"""Rows of the JavaScript saver, and what LangGraph.js 1.7.3 says of each checkpoint; `make.mjs` has made both."""


@pytest.mark.parametrize("keep", [None, 2])
def test_rows_of_langgraph_js_are_as_it_finds_them_also_when_pruned(tmp_path: Path, keep: int | None) -> None:
    path = str(tmp_path / "threads.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((JS / "threads.sql").read_text())
    states = [json.loads(line) for line in (JS / "states.jsonl").read_text().splitlines()]
    with threadcases.reader("sqlite", path) as backend:
        b = Bench(None, backend)
        for name in ("delta", "whole"):
            expected = {id_: said for thread_id, id_, *said in states if thread_id == name}
            if keep is not None:
                with contextlib.closing(backend.volume.tables()) as tables:
                    whole = plan(tables.outline(name), Keep(keep), time.time_ns() + HOUR_NS).whole
                    assert prune(tables, name, Keep(keep), now_ns=lambda: time.time_ns() + HOUR_NS).checkpoints > 5
                backend.volume.follow()
                expected = {id_: said for id_, said in expected.items() if ("", id_) in whole}
            found = {}
            for directory in b.history(f"/{name}"):
                state = json.loads(b.get(f"{directory}.state.json") or b"")
                if state["checkpoint_id"] in expected:
                    files = {path: data.decode() for path, data in b.tree(directory).items()}
                    talk = map(json.loads, (b.get(f"{directory}.messages.jsonl") or b"").splitlines())
                    said = [[message["type"], message["id"], message["content"]] for message in talk]
                    found[state["checkpoint_id"]] = [state["next"], files, said]
            assert found == expected
            now = json.loads(b.get(f"/{name}/state.json") or b"")
            assert [asked["value"] for asked in now["interrupts"]] == ["go on?"]
            assert b.tree(f"/{name}/head") == {path: text.encode() for path, text in expected[max(expected)][1].items()}
