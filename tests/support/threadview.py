"""The directory of a thread as people read it, compared with LangGraph's own `get_state_history`.

`steps` asks LangGraph, `View` reads a `ThreadsBackend` by its verbs, and each `check_…` compares one part of the
directory. They are written from the promises, and use no code of the package that makes the files: texts are compared
by their letters and digits, whatever Markdown stands around them.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import math
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from graphs import thread
from langchain_core.messages import BaseMessage
from markdown_it import MarkdownIt

from fusebackend import text
from fusebackend.backends.threads import ThreadsBackend
from fusebackend.volumes.walk import resolve

COLUMNS = ("name", "id", "parent", "step", "source", "node", "time", "messages added", "files changed", "next")
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d{4,}-[\w.:+-]+|\d{8}T\d{6}\.\d{3}Z--\d+-[\w.:+-]+")
MESSAGE_FILE = re.compile(r"(\d{4,})-([A-Za-z0-9_.-]+?)\.(calls\.json|artifact\.json|[a-z0-9]+)")


# -- LangGraph's own answer ------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A checkpoint as `get_state_history` returns it."""

    id: str
    parent: str | None
    at: str
    metadata: Mapping[str, Any]
    values: Mapping[str, Any]
    next: tuple[str, ...]
    interrupts: tuple[Any, ...]

    @property
    def messages(self) -> list[BaseMessage]:
        return list(self.values.get("messages") or [])

    @property
    def files(self) -> dict[str, bytes]:
        """By path, without a slash in front."""
        return {
            key.removeprefix("/"): data.encode() if isinstance(data, str) else text.decode_file_data(data)
            for key, data in (self.values.get("files") or {}).items()
        }

    @property
    def state(self) -> dict[str, Any]:
        return {key: plain(value) for key, value in self.values.items() if key not in ("files", "messages")}


def steps(agent: Any, name: str, namespace: str = "") -> list[Step]:
    """All checkpoints of a thread or of one of its sub-graphs, oldest first."""
    config = thread(name, checkpoint_ns=namespace) if namespace else thread(name)
    found = [
        Step(
            id=snapshot.config["configurable"]["checkpoint_id"],
            parent=((snapshot.parent_config or {}).get("configurable") or {}).get("checkpoint_id"),
            at=str(snapshot.created_at),
            metadata=snapshot.metadata,
            values=snapshot.values,
            next=snapshot.next,
            interrupts=tuple(item for task in snapshot.tasks for item in task.interrupts),
        )
        for snapshot in agent.get_state_history(config)
    ]
    assert found, f"LangGraph knows nothing of {name} {namespace}"
    return sorted(found, key=lambda step: step.id)


def plain(value: Any) -> Any:
    """A value of the state as `json.loads` returns it; sets have the order of their texts."""
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return value.hex
    if isinstance(value, BaseMessage):
        return message_fields(value)
    if isinstance(value, pydantic.BaseModel):
        return {"__class__": class_name(value), **plain(value.model_dump())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"__class__": class_name(value), **plain(fields)}
    if (isinstance(value, float) and not math.isfinite(value)) or type(value).__name__ == "Decimal":
        return str(value)
    if isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        return [plain(item) for item in value]
    return value


def class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """The fields of a message that say something."""
    return {
        key: plain(value)
        for key, value in message.model_dump().items()
        if key == "content" or (value not in (None, [], {}, False))
    }


def all_messages(found: list[Step]) -> list[BaseMessage]:
    """Every message of all checkpoints once, in the order in which they came: one that was changed is another one."""
    return [message for added in added_messages(found) for message in added]


def added_messages(found: list[Step]) -> list[list[BaseMessage]]:
    """For each checkpoint the messages that no older one has, by their fields, for `repr` takes far longer."""
    known: set[str] = set()
    answer = []
    for step in found:
        added = [message for message in step.messages if str(vars(message)) not in known]
        known.update(str(vars(message)) for message in added)
        answer.append(added)
    return answer


# -- what the backend shows ------------------------------------------------------------------------------------------


class View:
    """A directory of a thread, or of a sub-graph."""

    def __init__(self, backend: ThreadsBackend, path: str) -> None:
        self.backend = backend
        self.path = path
        self._tree: dict[str, bytes] | None = None

    def tree(self) -> dict[str, bytes]:
        """All files below it by path; those of sub-graphs are theirs."""
        if self._tree is None:
            self._tree = dict(self._below(self.path))
        return self._tree

    def _below(self, directory: str) -> Iterator[tuple[str, bytes]]:
        listing = self.backend.ls(directory)
        assert listing.error is None, listing.error
        entries = [entry for entry in listing.entries or [] if entry["path"] != f"{self.path}/subgraphs/"]
        files = [entry for entry in entries if not entry["is_dir"]]
        for entry, answer in zip(files, self.backend.download_files([entry["path"] for entry in files]), strict=True):
            assert answer.error is None, answer
            assert answer.content is not None
            assert entry["size"] == len(answer.content), f"{entry['path']} is listed with another size than it has"
            yield entry["path"][len(self.path) + 1 :], answer.content
        for entry in entries:
            if entry["is_dir"]:
                yield from self._below(entry["path"].rstrip("/"))

    def below(self, directory: str) -> dict[str, bytes]:
        """The files below a directory of it, by path there."""
        return {
            path[len(directory) + 1 :]: data for path, data in self.tree().items() if path.startswith(directory + "/")
        }

    def rows(self) -> list[dict[str, str]]:
        """`checkpoints.tsv` by its header."""
        lines = self.tree()["checkpoints.tsv"].decode().split("\n")
        assert lines.pop() == "", "checkpoints.tsv does not end with a newline"
        head, *rows = [line.split("\t") for line in lines]
        assert tuple(name.replace("_", " ") for name in head) == COLUMNS
        assert {len(row) for row in rows} <= {len(COLUMNS)}, "a row with another number of columns"
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def names(self) -> dict[str, str]:
        """The names of checkpoints by their ids."""
        return {row["id"]: row["name"] for row in self.rows()}

    def messages(self) -> dict[int, dict[str, bytes]]:
        """The files of `messages/` by number."""
        found: dict[int, dict[str, bytes]] = {}
        for name, data in sorted(self.below("messages").items()):
            match = MESSAGE_FILE.fullmatch(name)
            assert match, f"messages/{name!r}"
            found.setdefault(int(match[1]), {})[name] = data
        return found

    def attr(self, path: str, *, follow: bool = True) -> Any:
        return resolve(self.backend.volume, f"{self.path}/{path}", follow=follow).attr


class Section(NamedTuple):
    """A part of a transcript."""

    number: int
    heading: str
    body: str


def sections(transcript: str) -> list[Section]:
    """The messages of a transcript: the headings of level 2 that a Markdown parser finds."""
    tokens = MarkdownIt().parse(transcript)
    lines = transcript.split("\n")
    heads = [
        (token.map[0], token.map[1], tokens[at + 1].content)
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2" and token.map is not None
    ]
    ends = [start for start, _, _ in heads[1:]] + [len(lines)]
    found = []
    for (_, start, heading), end in zip(heads, ends, strict=False):
        match = re.match(r"(\d+) · ", heading)
        assert match, f"a heading that is no message's: {heading!r}"
        found.append(Section(int(match[1]), heading, "\n".join(lines[start:end])))
    return found


# -- messages --------------------------------------------------------------------------------------------------------


def letters(found: str | bytes) -> str:
    """Letters and digits only: what Markdown, escapes and control characters can't change."""
    return re.sub(r"[\W_]+", "", found.decode() if isinstance(found, bytes) else found)


def pieces(message: BaseMessage) -> Iterator[str]:
    """The texts of a message that are to be found."""
    for block in [message.content] if isinstance(message.content, str) else message.content:
        if isinstance(block, str):
            yield block
        elif block.get("type") in ("tool_use", "tool_call", "function_call") or is_media(block):
            continue
        else:
            for key, value in block.items():
                if key not in ("type", "signature", "id", "index"):
                    yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != "type":
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


def is_media(block: Mapping[str, Any]) -> bool:
    return "base64" in block or "image_url" in block


def media(message: BaseMessage) -> Iterator[bytes]:
    for block in message.content if isinstance(message.content, list) else []:
        if isinstance(block, dict) and is_media(block):
            yield base64.b64decode(block.get("base64") or block["image_url"]["url"].partition(",")[2])


def calls(message: BaseMessage) -> list[dict[str, Any]]:
    return [plain(call) for call in getattr(message, "tool_calls", None) or []]


def check_files_of_message(files: Mapping[str, bytes], message: BaseMessage) -> None:
    """The files of one message say all that it says."""
    left = dict(files)
    whole = b"".join(data for name, data in sorted(left.items()) if name.endswith((".md", ".txt")))
    assert all(re.match(rf"\d+-{message.type}\b", name) for name in left), (message.type, sorted(left))
    if isinstance(message.content, str):
        if message.type == "tool":
            texts = [data for name, data in left.items() if name.endswith(".txt")]
            assert texts == [message.content.encode("utf-8", "replace")]
        elif not message.additional_kwargs:
            body = re.sub(r"\n```json\n.*", "", whole.decode(), flags=re.DOTALL) if message.type == "chat" else whole
            assert letters(body) == letters(message.content)
    for piece in pieces(message):
        assert letters(piece) in letters(whole)
    for data in media(message):
        (name,) = [name for name, found in left.items() if found == data and not name.endswith((".md", ".json"))]
        del left[name]
    kept = [json.loads(data) for name, data in left.items() if name.endswith(".calls.json")]
    wanted = [{key: call[key] for key in ("id", "name", "args")} for call in calls(message)]
    assert [[{key: call[key] for key in ("id", "name", "args")} for call in made] for made in kept] == (
        [wanted] if wanted else []
    )
    artifacts = [json.loads(data) for name, data in left.items() if name.endswith(".artifact.json")]
    artifact = getattr(message, "artifact", None)
    assert artifacts == ([] if artifact is None else [plain(artifact)])


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def check_section(section: Section, message: BaseMessage, files: Mapping[str, bytes]) -> None:
    """A section says all, or the beginning and the path of the whole."""
    assert re.match(rf"\d+ · {message.type}\b", section.heading), (section.heading, message.type)
    named = {path.rpartition("/")[2] for path in re.findall(r"\(messages/([^)]+)\)", section.body)}
    assert named <= files.keys(), f"named, but not in messages/: {named - files.keys()}"
    body = letters(section.body)
    for piece in pieces(message):
        whole = any(letters(piece) in letters(files[name]) for name in named if name.endswith((".md", ".txt")))
        assert letters(piece) in body or (whole and letters(piece)[:300] in body)
    for data in media(message):
        assert any(files[name] == data for name in named)
    made = calls(message)
    assert section.body.count("\n**calls ") + section.body.startswith("**calls ") >= len(made)
    for call in made:
        args = letters(re.sub("[\x7f-\x9f]", _escaped, json.dumps(call["args"], ensure_ascii=False, sort_keys=True)))
        cut = any(name.endswith(".calls.json") for name in named)
        assert args in body or cut
        assert letters(call["name"]) in body


def check_conversation(view: View, expected: list[BaseMessage]) -> None:
    """Every message and call once in `messages/` and once in `transcript.md`."""
    shown = view.messages()
    assert list(shown) == list(range(1, len(expected) + 1))
    told = sections(view.tree()["transcript.md"].decode())
    assert [section.number for section in told] == list(shown)
    for number, section, message in zip(shown, told, expected, strict=True):
        check_files_of_message(shown[number], message)
        check_section(section, message, shown[number])


# -- history ---------------------------------------------------------------------------------------------------------


def check_rows(view: View, expected: list[Step]) -> None:
    """`checkpoints.tsv` has a row for each checkpoint, and `history/` its names."""
    rows = view.rows()
    assert [row["id"] for row in rows] == [step.id for step in expected]
    names = [row["name"] for row in rows]
    times = [name.partition("-")[0] for name in names]  # two of one millisecond are in the order of their steps
    assert times == sorted(times)
    assert all(NAME.fullmatch(name) for name in names), names
    by_id = {step.id: step for step in expected}
    known = {row["id"]: row["name"] for row in rows}
    for row, step, added in zip(rows, expected, added_messages(expected), strict=True):
        parent = by_id.get(step.parent or "")
        assert row["parent"] in ({"", "-"} if step.parent is None else {step.parent, known.get(step.parent)})
        assert int(row["step"]) == step.metadata["step"]
        assert row["source"] == step.metadata["source"]
        asked, shown = (datetime.datetime.fromisoformat(found) for found in (step.at, row["time"]))
        assert abs((asked - shown).total_seconds()) < 0.1
        assert re.match(rf"{shown:%Y%m%dT%H%M%S}\.\d+Z-{step.metadata['step']:04}-", row["name"])
        assert int(row["messages added"]) == len(added)
        assert count(row["files changed"]) == len(changed(parent.files if parent else {}, step.files))
        assert letters(row["next"]) == letters("".join(step.next)), (row["next"], step.next)
    listed = {path.split("/")[0] for path in view.below("history")}
    for name in names:
        assert f"{name}.state.json" in listed
    entries = view.backend.ls(f"{view.path}/history").entries or []
    assert {entry["path"].rstrip("/").rpartition("/")[2] for entry in entries if entry["is_dir"]} == set(names)


def count(field: str) -> int:
    """A number, or a list of names."""
    return int(field or 0) if not field or field.isdecimal() else len(re.split(r"[ ,]+", field))


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def check_history(view: View, expected: list[Step]) -> None:
    """The files, messages and state of each checkpoint."""
    names = view.names()
    for step in expected:
        name = names[step.id]
        assert view.below(f"history/{name}") == step.files, name
        check_messages_at(view.tree().get(f"history/{name}.messages.jsonl", b""), step)
        check_state_at(view.tree()[f"history/{name}.state.json"], step)


def check_messages_at(data: bytes, step: Step) -> None:
    shown = [json.loads(line) for line in data.decode().splitlines()]
    assert len(shown) == len(step.messages)
    for line, message in zip(shown, step.messages, strict=True):
        fields = message_fields(message)
        assert {key: line.get(key) for key in fields} == fields


def check_state_at(data: bytes, step: Step) -> None:
    shown = json.loads(data)
    assert shown["checkpoint_id"] == step.id
    assert "pending" not in shown, "the values of the next checkpoint"
    values = shown["values"]
    for key, value in step.state.items():
        if key not in values:
            assert value in ([], {}, "", 0), f"{key} is missing"  # what a channel begins with is not stored
            continue
        found = values[key]
        if isinstance(value, list) and isinstance(step.values[key], (set, frozenset)):
            found = sorted(found, key=str)
        assert found == value, key
    assert values.keys() <= step.state.keys()
    again = json.dumps(shown, ensure_ascii=False, indent=2, sort_keys=True)
    assert sorted(again.split()) == sorted(data.decode().split()), "not pretty, or a key twice"


def check_patches(view: View, expected: list[Step], work: Path) -> None:
    """`changes/` has a patch for each checkpoint that changed files, and `git apply` makes these changes."""
    names = view.names()
    patches = {path.removesuffix(".patch"): data for path, data in view.below("changes").items()}
    assert patches.keys() <= set(names.values())
    by_id = {step.id: step for step in expected}
    for step in expected:
        before = by_id[step.parent].files if step.parent in by_id else {}
        name = names[step.id]
        assert (name in patches) == bool(changed(before, step.files)), name
        if name in patches:
            assert step.id in patches[name].decode("utf-8", "replace")
            tree = work / name
            for path, data in before.items():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(data)
            tree.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                ["git", "apply", "--whitespace=nowarn", "-"], cwd=tree, input=patches[name], capture_output=True,
                env={"GIT_CEILING_DIRECTORIES": str(work), "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr.decode()
            made = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
            assert made == step.files


def check_readme(view: View, expected: list[Step]) -> None:
    """Title, model, times, steps, and what is next or interrupted."""
    readme = view.tree()["README.md"].decode()
    last = expected[-1]
    first = next((message for message in all_messages(expected) if message.type == "human"), None)
    if first is not None:
        asked = next((piece for piece in pieces(first) if piece.strip()), "")
        assert letters(asked.strip().split("\n")[0])[:60] in letters(readme.split("\n")[0])
    assert readme.startswith("# ")
    shown = letters(readme)
    for step in (expected[0], last):
        assert letters(f"{datetime.datetime.fromisoformat(step.at):%Y-%m-%d}") in shown
        assert letters(f"{datetime.datetime.fromisoformat(step.at):%H:%M:%S}") in shown
    for node in () if last.interrupts else last.next:
        assert letters(node) in shown
    for item in last.interrupts:
        assert "waits for a human" in readme
        if isinstance(item.value, dict) and "question" in item.value:
            assert letters(str(item.value["question"])) in shown
    models = {
        message.response_metadata["model_name"]
        for message in last.messages
        if message.response_metadata.get("model_name")
    }
    for model in models:
        assert letters(model) in shown
