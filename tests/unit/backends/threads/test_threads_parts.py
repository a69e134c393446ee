"""The parts that a thread is read with: stored values, messages and their parts, names, and what a run is doing."""

from __future__ import annotations

import base64
import collections
import contextlib
import datetime
import decimal
import errno
import json
import pathlib
import re
import uuid
from typing import Any, TypedDict

import graphs
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Interrupt, Overwrite, Send
from markdown_it import MarkdownIt
from profiles import examples
from raising import raising

from fusebackend.backends.threads.conversation import files_of, section, title
from fusebackend.backends.threads.database import values as stored_values
from fusebackend.backends.threads.database.activity import RunWatch, next_nodes, standing
from fusebackend.backends.threads.database.rows import (
    NOTHING,
    NULL_TASK,
    Damaged,
    Place,
    Raw,
    Saved,
    Write,
    checkpoint_name,
    time_ns_of,
)
from fusebackend.backends.threads.database.sqlite import SqliteDatabase
from fusebackend.backends.threads.database.values import (
    MAX_LEVELS,
    Ext,
    FilesChannel,
    Message,
    MessagesChannel,
    compact,
    loads,
    overwriting,
    pack,
    plain_message,
    pretty,
    replay,
    unpack,
    update,
)
from fusebackend.backends.threads.documents import message_line
from fusebackend.backends.threads.index import Said, Step, _digest, patch_of
from fusebackend.backends.threads.nodes import Nodes, Records

SERIALISER = JsonPlusSerializer()


def readable(value: Any) -> Any:
    """The value as its JSON has it."""
    found = json.loads(pretty(value))
    assert json.loads(compact(value)) == found
    return found


def stored(value: Any) -> Any:
    """A value as LangGraph stores it and we read it."""
    return loads(Raw(*SERIALISER.dumps_typed(value)))


# -- values ------------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(max_examples=examples(50))
@given(JSON)
def test_plain_data_is_read_as_it_was_and_written_as_langgraph_writes_it(value: Any) -> None:
    assert readable(stored(value)) == value
    if value is not None:
        assert SERIALISER.loads_typed(pack(value)) == value


@for_each(
    ("value", "shown"),
    [
        (uuid.UUID(int=5), "00000000000000000000000000000005"),
        (decimal.Decimal("1.50"), "1.50"),
        (datetime.datetime(2025, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2025-01-02T03:04:05+00:00"),
        ({"a"}, ["a"]),
        (collections.deque([1, 2]), [1, 2]),
        (pathlib.PurePosixPath("/a/b"), None),
        (pathlib.Path("/a/b"), "/a/b"),
        (b"\xff", {"__bytes__": "/w=="}),
        (float("inf"), "inf"),
        ({1: 2}, {"1": 2}),
        (Send("tools", {"a": 1}), {"__class__": "langgraph.types.Send", "value": ["tools", {"a": 1}]}),
        (_DeltaSnapshot({"a": {1}}), {"a": [1]}),
        (Interrupt(value="?", id="7"), {"__class__": "langgraph.types.Interrupt", "value": "?", "id": "7"}),
    ],
)
def test_objects_are_shown_without_their_classes(value: Any, shown: Any) -> None:
    try:
        found = readable(stored(value))
    except TypeError:
        assert shown is None  # what LangGraph can't store
        return
    if isinstance(found, dict):
        found.pop("response_schema", None)
    if shown is not None:
        assert found == shown
    json.dumps(found, allow_nan=False)


def test_numpy_arrays_are_shown() -> None:
    packed = SERIALISER.dumps_typed(("<i2", (2, 1), "C", b"\1\0\2\0"))[1]
    shown = {"__class__": "numpy.ndarray", "dtype": "<i2", "shape": [2, 1], "data": {"__bytes__": "AQACAA=="}}
    assert readable(Ext(6, packed)) == shown


def test_unknown_extension_types_are_shown_as_bytes() -> None:
    assert readable(Ext(99, b"x")) == {"__extension__": 99, "__bytes__": "eA=="}


@for_each("data", [b"", b"\xc1", b"\x92\x01", b"\xd4\x00\x01"])
def test_an_object_that_is_none_is_damaged(data: bytes) -> None:
    assert list(readable(Ext(5, data))) == ["error"]


@settings(max_examples=examples(50))
@given(st.binary(max_size=40))
def test_no_bytes_are_more_than_damaged(data: bytes) -> None:
    for kind in ("msgpack", "json", "bytes", "null", "pickle", "x+y", ""):
        try:
            readable(loads(Raw(kind, data)))
        except Damaged as error:
            assert error.errno == errno.EIO and "\n" not in str(error)


def test_deep_nesting_is_shown_up_to_a_bound() -> None:
    value: Any = "x"
    for _ in range(1_000):
        value = [value]
    assert compact(value) == "[" * 1_000 + '"x"' + "]" * 1_000
    assert pretty({"a": value}).count("[") == 1_000
    for _ in range(2 * MAX_LEVELS):
        value = {"a": value}
    assert f"nested deeper than {MAX_LEVELS} levels" in compact(value)


# -- channels ----------------------------------------------------------------------------------------------------------


@for_each("piece", [b"\x90", b"\x81\xa1a\x90"])
def test_more_values_than_any_checkpoint_has_are_refused_before_they_are_made(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = (1 << 20) // len(piece) + 50_000
    monkeypatch.setattr(stored_values, "_ormsgpack", raising(AssertionError("values were made")))
    with pytest.raises(Damaged, match="more than 500,000 values"):
        loads(Raw("msgpack", b"\xdd" + count.to_bytes(4) + piece * count))


def test_a_piece_of_json_may_have_16_mebibytes() -> None:
    with pytest.raises(Damaged, match="JSON of more than 16 MiB"):
        loads(Raw("json", b"[" + b"[]," * (6 << 20) + b"[]]"))


def test_large_texts_and_messages_are_no_values() -> None:
    files = {f"/{number}": "x" * 70_000 for number in range(100)}
    messages = [HumanMessage("y" * 3_000_000), *(HumanMessage("short") for _ in range(1000))]
    kind, data = SERIALISER.dumps_typed({"files": files, "messages": messages})
    assert stored_values._count(data, 5000) <= 5000
    assert loads(Raw(kind, data))["files"] == files


def test_overwrites_in_each_form() -> None:
    for form in (Overwrite({"a": 1}), {"__overwrite__": {"a": 1}}, {"type": "__overwrite__", "value": {"a": 1}}):
        assert overwriting(stored(form)) == {"a": 1}
    for other in ({"type": "x", "value": 1}, {"__overwrite__": 1, "b": 2}, [1], None):
        assert overwriting(stored(other)) is NOTHING


def test_an_overwrite_begins_anew_in_a_replay_and_is_alone_in_a_step() -> None:
    files = FilesChannel()
    written = [{"/a": 1}, {"__overwrite__": {"/b": 2}}, {"/c": 3, "/b": None}]
    assert replay(files, {"/z": 0}, written) == {"/c": 3}
    assert update(files, {"/z": 0}, written) == {"/b": 2}
    assert update(files, {"/z": 0}, []) == {"/z": 0}


@for_each(
    "value",
    [
        HumanMessage("hi", id="1"),
        AIMessage("ok", id="2", tool_calls=[{"name": "t", "args": {}, "id": "c", "type": "tool_call"}]),
        ToolMessage("done", tool_call_id="c", id="3"),
        SystemMessage("be kind", id="4"),
    ],
)
def test_messages_keep_their_type_and_content(value: Any) -> None:
    found = plain_message(stored(value))
    assert (found["type"], found["content"], found["id"]) == (value.type, value.content, value.id)


@for_each(
    ("value", "shown"),
    [
        ("hi", {"type": "human", "content": "hi"}),
        (("user", "hi"), {"type": "human", "content": "hi"}),
        (["assistant", "hi"], {"type": "ai", "content": "hi"}),
        (("critic", "hi"), {"type": "critic", "content": "hi"}),
        ({"role": "developer", "content": "x", "id": "7"}, {"type": "system", "content": "x", "id": "7"}),
        ({"type": "ai", "content": "x"}, {"type": "ai", "content": "x"}),
        (
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "schema", "AIMessageChunk"],
                "kwargs": {"content": "x"},
            },
            {"type": "ai", "content": "x"},
        ),
    ],
)
def test_messages_in_other_forms(value: Any, shown: Any) -> None:
    assert plain_message(value) == shown


@for_each("value", [7, None, ["a", "b", "c"], Ext(6, b"")])
def test_what_is_no_message_is_damaged(value: Any) -> None:
    with pytest.raises(Damaged):
        plain_message(value)


def test_messages_are_merged_as_their_reducer_does() -> None:
    messages = MessagesChannel()
    found = replay(
        messages,
        messages.whole(stored(_DeltaSnapshot([HumanMessage("1", id="a"), HumanMessage("2", id="b")]))),
        [
            stored([AIMessage("3", id="c"), ("user", "no id")]),
            stored([HumanMessage("2, again", id="b"), RemoveMessage(id="a"), RemoveMessage(id="not there")]),
            ("user", "no id"),
        ],
    )
    assert [message["content"] for message in found.values()] == ["2, again", "3", "no id", "no id"]
    found = replay(messages, found, [stored([RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("new", id="n")])])
    assert [message["content"] for message in found.values()] == ["new"]


# -- names -------------------------------------------------------------------------------------------------------------


@for_each(
    ("checkpoint", "ts", "time_ns"),
    [
        ("1ef4f797-8335-6428-8001-8a1503f9b875", None, 1722456859804164000),
        ("not an id", "2024-05-04T06:32:42.235444+00:00", 1714804362235444000),
        ("not an id", "2024-05-04T06:32:42.235444", 1714804362235444000),
        (str(uuid.UUID(int=0)), None, None),
        ("not an id", "yesterday", None),
    ],
)
def test_times(checkpoint: str, ts: str | None, time_ns: int | None) -> None:
    assert time_ns_of(checkpoint, ts) == time_ns


def test_names_are_unique_and_in_order() -> None:
    one = "1ef4f797-8335-6428-8001-8a1503f9b875"
    twin = "1ef4f797-8335-6428-8001-ffffffffffff"
    later = "1ef4f797-9335-6428-8002-8a1503f9b875"
    made = 1714804362235444000
    taken: list[bytes] = []
    for checkpoint, time_ns, step, node in [
        ("own/id", made, -1, "a/b.state.json"),
        (one, time_ns_of(one), 1, "tools"),
        (twin, time_ns_of(twin), 1, "tools"),
        (later, time_ns_of(later), 12345, "model+tools"),
        ("x" * 300, None, 2, "y" * 300),
        ("undated", None, None, "update"),
    ]:
        taken.append(checkpoint_name(checkpoint, time_ns, step, node, taken))
    assert len(taken[4]) <= 200
    assert [*taken[:4], taken[5]] == [
        b"20240504T063242.235Z--001-a_b_state_json-own%2Fid",
        b"20240731T201419.804Z-0001-tools",
        f"20240731T201419.804Z-0001-tools-{twin}".encode(),
        b"20240731T201421.481Z-12345-model+tools",
        b"undated-none-update-undated",
    ]
    assert taken == sorted(taken)


@given(st.lists(st.integers(0, 2**60 - 1), min_size=2, max_size=9, unique=True))
def test_names_sort_as_ids_do(ticks: list[int]) -> None:
    def made(tick: int) -> str:
        high, low = tick >> 12, tick & 0xFFF
        return str(uuid.UUID(int=high << 80 | 6 << 76 | low << 64 | 2 << 62))

    names: list[bytes] = []
    for checkpoint in dict.fromkeys(sorted(made(tick % (2**57)) for tick in ticks)):
        names.append(checkpoint_name(checkpoint, time_ns_of(checkpoint), 0, "tools", names))
    times = [name[:20] for name in names if not name.startswith(b"undated")]
    assert times == sorted(times)
    assert len(set(names)) == len(names)


# -- what a run is doing -----------------------------------------------------------------------------------------------


def saved(values: dict[str, Any], seen: dict[str, Any] | None = None, **more: Any) -> Saved:
    versions = more.pop("versions", dict.fromkeys(values, "2"))
    return Saved(str(uuid6(clock_seq=1)), None, None, values, versions, seen or {}, {})


def wrote(task: str, channel: str, order: int = 1) -> Write:
    return Write(task, channel, Raw("null", b""), order, order)


@for_each(
    ("made", "nodes"),
    [
        (saved({}), ()),
        (saved({"__start__": {"x": 1}}), ("__start__",)),
        (saved({"branch:to:model": None}), ("model",)),
        (saved({"branch:to:model": None}, {"model": {"branch:to:model": "1"}}), ("model",)),
        (saved({"branch:to:model": None}, {"model": {"branch:to:model": "2"}}), ()),
        (
            saved({"branch:to:model": None}, {"model": {"branch:to:model": 3}}, versions={"branch:to:model": 20}),
            ("model",),
        ),
        (saved({"branch:a:choose:b": "a"}), ("b",)),
        (saved({"start:a": None}), ("a",)),
        (saved({"join:a+b:c": stored({"a", "b"})}), ("c",)),
        (saved({"join:a+b:c": stored({"a"})}), ()),
        (saved({"__pregel_tasks": [stored(Send("tools", 1)), stored(Send("tools", 2))]}), ("tools", "tools")),
        (saved({"__pregel_tasks": ["?"]}), ("unknown",)),
        (saved({"__pregel_tasks": [], "messages": [1]}), ()),
    ],
)
def test_next_nodes(made: Saved, nodes: tuple[str, ...]) -> None:
    assert next_nodes(made) == nodes


ONE = {"branch:to:a": None}
TWO = {"branch:to:a": None, "branch:to:b": None}


@for_each(
    ("values", "writes", "running"),
    [
        ({}, [], False),
        (ONE, [], True),
        (ONE, [wrote("t1", "files")], True),  # it is done, and the next checkpoint is on its way
        (ONE, [wrote("t1", "__interrupt__")], False),
        (ONE, [wrote("t1", "__error__")], False),
        (TWO, [wrote("t1", "__error__")], False),  # the other one was cancelled
        (TWO, [wrote("t1", "__error__"), wrote("t1", "__error_source_node__")], True),
        (TWO, [wrote("t1", "__interrupt__")], True),
        (TWO, [wrote("t1", "__interrupt__"), wrote("t2", "files")], False),
        (TWO, [wrote("t1", "__interrupt__"), wrote("t2", "__interrupt__")], False),
        (ONE, [wrote("t1", "__interrupt__", 1), wrote(NULL_TASK, "__resume__", 2)], True),
        (
            ONE,
            [wrote(NULL_TASK, "__resume__", 1), wrote("t1", "__resume__", 3), wrote("t1", "__interrupt__", 2)],
            False,
        ),
        (ONE, [wrote(NULL_TASK, "files", 1)], True),
    ],
)
def test_a_run_is_going_on_or_is_not(values: dict[str, Any], writes: list[Write], running: bool) -> None:
    assert standing(saved(values), writes).running is running


def test_nodes_that_wait_for_several_others(tmp_path: Any) -> None:
    """`join:` channels, as a real graph has them."""
    graph = StateGraph(TypedDict("State", {"x": int}))
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state: {})
    for start, end in ((START, "a"), (START, "b"), (["a", "b"], "c"), ("c", END)):
        graph.add_edge(start, end)
    with graphs.sqlite_saver(tmp_path / "t.db") as saver:
        agent = graph.compile(checkpointer=saver)
        agent.invoke({"x": 1}, graphs.thread("t"))
        ids = graphs.checkpoint_ids(agent, graphs.thread("t"))
        with contextlib.closing(SqliteDatabase(str(tmp_path / "t.db"))) as database:
            found = [next_nodes(database.saved(Place("t", ""), checkpoint)) for checkpoint in ids]
    assert found == [("__start__",), ("a", "b"), ("c",), ()]


ASKED = wrote("t1", "__interrupt__", 1)
DONE = wrote("t1", "files", 1)
MORE = wrote("t1", "messages", 2)


@for_each(
    ("values", "moments"),
    [
        # A sign of life comes at 601 s.
        (TWO, [(0, [DONE], True), (599, [DONE], True), (601, [DONE], False), (601, [DONE, MORE], True),
               (1200, [DONE, MORE], True), (1202, [DONE, MORE], False)]),
        # Who comes late goes by the time of the checkpoint, but an answer may have come just now.
        (ONE, [(601, [], False)]),
        (ONE, [(10**6, [ASKED, wrote(NULL_TASK, "__resume__", 2)], True),
               (10**6 + 601, [ASKED, wrote(NULL_TASK, "__resume__", 2)], False)]),
        # At rest, and waiting.
        ({}, [(0, [], False)]),
        (ONE, [(0, [ASKED], False)]),
    ],
)  # fmt: skip
def test_a_run_without_a_sign_of_life_has_ended(
    values: dict[str, Any], moments: list[tuple[float, list[Write], bool]]
) -> None:
    started_ns, seconds = time_ns_of(str(uuid6())) or 0, 0.0
    watch = RunWatch(600.0, lambda: seconds, lambda: started_ns + int(seconds * 1e9))
    made = saved(values)
    for seconds, writes, is_active in moments:
        assert watch.is_active(made, writes, standing(made, writes)) is is_active, seconds


# -- conversations that are read in order ----------------------------------------------------------------------------


def stored_messages(*texts: str) -> list[Ext]:
    messages = [HumanMessage(text, id=f"id-{text[:1]}") for text in texts]
    return list(unpack(JsonPlusSerializer().dumps_typed(messages)[1]))


def test_equal_stored_conversations_are_one_object() -> None:
    channel = MessagesChannel()
    first = channel.whole(stored_messages("a", "b"))
    assert channel.whole(stored_messages("a", "b")) is first
    longer = channel.whole(stored_messages("a", "b", "c"))
    assert [message["content"] for message in longer.values()] == ["a", "b", "c"]
    assert all(one is other for one, other in zip(first.values(), longer.values(), strict=False))
    assert len(first) == 2
    for texts in (("a", "b2", "c"), ("b2",), (), ("a", "a", "b"), ("a", "a")):
        assert [message["content"] for message in channel.whole(stored_messages(*texts)).values()] == list(texts)


def test_a_write_after_an_overwrite_leaves_the_overwriting_value_alone() -> None:
    channel = MessagesChannel()
    whole = channel.whole(stored_messages("a", "b"))
    overwrite = {"__overwrite__": stored_messages("a", "b")}
    found = replay(channel, {}, [overwrite, stored_messages("c")])
    assert [message["content"] for message in found.values()] == ["a", "b", "c"]
    assert len(whole) == 2
    assert channel.whole(stored_messages("a", "b")) is whole


@for_each(
    "fields",
    [
        {"type": "human", "content": "a\nü\ud800\x7f", "id": 'é"\\', "name": None},
        {"type": "human", "content": "a"},
        {"type": "human", "content": "", "id": ""},
        {"type": "ai", "content": [], "id": None, "tool_calls": []},
        {"type": "ai", "content": None, "id": 7},
        {"content": [], "id": {}},
        {"content": [], "id": "x"},
        {"id": "x"},
        {"id": None},
        {},
    ],
)
def test_the_size_of_a_line_follows_from_its_parts(fields: dict[str, Any]) -> None:
    message = Message(fields)
    assert _digest(message)[1] == len(message_line(message))


# -- patches; `test_git_patch.py` has those of files ------------------------------------------------------------------


def test_it_reads_like_a_log_and_its_header_has_a_line_for_each_field() -> None:
    said = Said("id\nforged", [], 0, 0, [], None)
    step = Step(said, "name", None, 1, "loop", "a\x1b[2J", [], [], 0, 1, 0, 0, None)
    records = Records(Nodes())
    made = patch_of(step, "s\r\ndiff --git a/x b/x", {}, {"/f": records.of("x")}).decode()
    lines = made.split("\n")
    assert lines[0] == "commit id\N{REPLACEMENT CHARACTER}forged"
    assert [line for line in lines if line.startswith("diff ")] == ["diff --git a/f b/f"]
    assert "\x1b" not in made


# -- the parts of a message --------------------------------------------------------------------------------------------


NOON_NS = 1_795_350_871_000_000_000  # 2026-11-22 12:34:31 UTC
PNG = b"\x89PNG\r\n\x1a\n rest"
ENCODED = base64.b64encode(PNG).decode()


def headings(markdown: str) -> list[tuple[str, str]]:
    tokens = MarkdownIt().parse(markdown)
    return [(token.tag, tokens[at + 1].content) for at, token in enumerate(tokens) if token.type == "heading_open"]


def human(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "human", "content": text, "id": "1", **more}


def tool(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool", "content": content, "name": "grep", "tool_call_id": "c1", "status": "success", **more}


def names(message: dict[str, Any], number: int = 1) -> list[str]:
    return [file.name for file in files_of(number, message)]


class TestHostile:
    @settings(max_examples=examples(150))
    @given(
        st.lists(
            st.sampled_from(
                [
                    "`",
                    "```",
                    "~~~",
                    "\n",
                    "#",
                    " ",
                    "x",
                    "---",
                    "<!--",
                    ">",
                    "-",
                    "1.",
                    "\t",
                    "    ",
                    "\\",
                    "=",
                    "<pre>",
                ]
            ),
            max_size=14,
        ).map("".join)
    )
    def test_of_any_text(self, text: str) -> None:
        shown = section(1, human(text), NOON_NS) + section(2, tool(text), NOON_NS) + section(3, human("end"), NOON_NS)
        assert [found[1] for found in headings(shown)] == [
            "1 · human · 12:34:31",
            "2 · tool grep · 12:34:31",
            "3 · human · 12:34:31",
        ]

    def test_a_tools_result_is_byte_for_byte(self) -> None:
        for text, data in [("a\x1b[31m\r\n", b"a\x1b[31m\r\n"), ("\udcff", b"\xff"), ("\ud800", b"?"), ("", b"")]:
            assert files_of(3, tool(text)) == [("0003-tool-grep.txt", data)]


class TestFiles:
    def test_a_conversation(self) -> None:
        ai = {
            "type": "ai",
            "content": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look first"}]},
                {"type": "text", "text": "I look."},
            ],
            "tool_calls": [{"name": "grep", "args": {"pattern": "TODO"}, "id": "c1", "type": "tool_call"}],
            "invalid_tool_calls": [{"name": "rm", "args": "{", "id": "c2", "error": "no JSON"}],
        }
        assert names(human("hi")) == ["0001-human.md"]
        assert names(ai, 2) == ["0002-ai.md", "0002-ai.calls.json"]
        assert files_of(2, ai)[0].data.decode() == "> look first\n\nI look.\n\n"
        assert json.loads(files_of(2, ai)[1].data) == [
            {"id": "c1", "name": "grep", "args": {"pattern": "TODO"}},
            {"id": "c2", "name": "rm", "args": "{", "error": "no JSON"},
        ]
        shown = section(2, ai, NOON_NS)
        assert shown.startswith("## 2 · ai · 12:34:31\n\n> look first\n\nI look.\n\n**calls grep**\n\n```json\n")
        assert "**calls rm**: no JSON" in shown

    @for_each(
        "block",
        [
            {"type": "image", "base64": ENCODED, "mime_type": "image/png"},
            {"type": "image", "source_type": "base64", "data": ENCODED, "mime_type": "image/png"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
            {"type": "image_url", "image_url": f"data:image/png;base64,{ENCODED}"},
        ],
    )
    def test_an_image_is_a_file_in_each_form_of_the_providers(self, block: dict[str, Any]) -> None:
        assert files_of(7, tool([block], name="shot")) == [("0007-tool-shot.png", PNG)]
        assert "![0007-tool-shot.png](messages/0007-tool-shot.png)" in section(7, tool([block], name="shot"), 0)
        both = files_of(7, human([{"type": "text", "text": "look"}, block, block]))
        assert [file.name for file in both] == ["0007-human.md", "0007-human.png", "0007-human-2.png"]

    @for_each(
        "block",
        [
            {"type": "image", "base64": "no base64!", "mime_type": "image/png"},
            {"type": "redacted_thinking", "data": "abc"},
            {"type": "non_standard", "value": {"provider": "x"}},
            {"type": "server_tool_call", "name": "web_search", "args": {"query": "q"}},
            {"what": "ever"},
            42,
        ],
    )
    def test_a_block_that_is_not_known_is_shown_as_json(self, block: Any) -> None:
        text = files_of(1, human([block]))[0].data.decode()
        assert json.loads(text.split("```json\n")[1].split("\n```")[0]) == block
        assert text in section(1, human([block]), 0)

    def test_an_offloaded_medium_is_a_link_to_its_file(self) -> None:
        digest = "5e" * 32
        block = {"type": "image", "mime_type": "image/png", "deepagents_blob": digest}
        for message in (human([block]), {**human([block]), "type": "tool"}):
            assert files_of(1, message)[0].data.decode() == f"![{digest}](../blobs/{digest})\n\n"
            assert section(1, message, 0).endswith(f"\n\n![{digest}](blobs/{digest})\n\n")
        odd = files_of(1, human([{**block, "deepagents_blob": "../" + digest}]))[0].data
        assert odd.startswith(b"```json")

    def test_a_call_among_the_blocks_is_not_shown_twice(self) -> None:
        message = {
            "type": "ai",
            "content": [{"type": "tool_use", "id": "c1", "name": "grep", "input": {"pattern": "unique"}}],
            "tool_calls": [{"name": "grep", "args": {"pattern": "unique"}, "id": "c1"}],
        }
        assert section(1, message, 0).count("unique") == 1
        assert sum(file.data.count(b"unique") for file in files_of(1, message)) == 1

    def test_fields_without_a_place_of_their_own_are_shown(self) -> None:
        assert b'"mood": "good"' in files_of(1, human("hi", mood="good"))[0].data
        assert names(tool("x", artifact={"rows": [1]})) == ["0001-tool-grep.txt", "0001-tool-grep.artifact.json"]


class TestCuts:
    def test_a_long_result_names_the_whole(self) -> None:
        text = "".join(f"line {number}\n" for number in range(1000))
        shown = section(5, tool(text), NOON_NS)
        assert "line 59\n" in shown
        assert "line 60\n" not in shown
        assert shown.endswith("more characters: [messages/0005-tool-grep.txt](messages/0005-tool-grep.txt)*\n\n")
        assert section(5, tool("x" * 10_000_000), NOON_NS).count("x") < 5_000

    def test_what_is_cut_and_what_is_said_of_it_make_the_whole(self) -> None:
        for length in (3_999, 4_000, 4_001, 9_000):
            shown = section(1, tool("y" * length), 0)
            said = re.search(r"… ([0-9,]+) more", shown)
            assert shown.count("y") + int(said[1].replace(",", "") if said else 0) == length


class TestTitle:
    def test_the_first_line_of_the_first_human(self) -> None:
        assert (
            title(iter([{"type": "system", "content": "be good"}, human("\n Fix\tthe login\x1b[2J test!\nplease")]))
            == "Fix the login [2J test!"
        )
        assert title(iter([human([{"type": "image", "url": "u"}, {"type": "text", "text": "look"}])])) == "look"
        assert title(iter([{"type": "ai", "content": "hm"}])) == ""
        assert len(title(iter([human("word " * 100)]))) == 80
