"""The pages about a line that people read first: `README.md`, `transcript.md`, `checkpoints.tsv` and
`space.tsv`.

All but the sections of the transcript and the sizes is made of the index alone, so a look reads no checkpoint. What
others have written is one line where it stands in a line, and can't begin a heading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads.conversation import escaped_inline, one_line
from fusebackend.backends.threads.database.rows import Place, iso_ms
from fusebackend.backends.threads.index import UNREADABLE, LineIndex, Step
from fusebackend.backends.threads.json_text import encoded
from fusebackend.backends.threads.lineage import Lineage
from fusebackend.backends.threads.message_index import MessageIndex, section_bytes

COLUMNS: Final = (
    "name", "id", "parent", "step", "source", "node", "time", "messages added", "files changed", "next",
)  # fmt: skip
"""Of `checkpoints.tsv`."""

MAX_FIELD_CHARS: Final = 2_000


def readme(index: LineIndex, place: Place) -> bytes:
    """A few lines on a conversation."""
    lines = [
        f"# {_title(index.talk)}",
        "",
        f"- thread: {_inline(place.thread)}" + (f", sub-graph: {_inline(place.namespace)}" if place.namespace else ""),
    ]
    if index.talk.model:
        lines.append(f"- model: {_inline(index.talk.model)}")
    if index.steps:
        newest = index.steps[-1]
        changes = sum(step.patch_bytes > 0 for step in index.steps)
        lines += [
            f"- created: {_when(index.steps[0])}",
            f"- last: {_when(newest)}",
            f"- steps: {len(index.steps)}, messages: {len(index.talk.messages)}, steps that changed files: {changes}",
            f"- {_standing(newest)}",
        ]
        lines += [f"- unreadable: {_inline(step.error)}" for step in index.steps[-1:] if step.error is not None]
    lines += [
        "",
        "`transcript.md` is the conversation, `messages/` has each message, `changes/` a git patch for each step that",
        "changed files, `checkpoints.tsv` a line for each step, `history/` the files and the state at each.",
        "",
    ]
    return encoded("\n".join(lines))


def _standing(newest: Step) -> str:
    if newest.interrupts:
        return f"waits for a human: {'; '.join(map(_inline, newest.interrupts))}"
    if newest.next:
        return f"next: {', '.join(map(_inline, newest.next))}"
    return "next: nothing, the run has ended"


def transcript_head(talk: MessageIndex) -> bytes:
    """The beginning of `transcript.md`; a section for each message follows."""
    return encoded(f"# {_title(talk)}\n\n")


def transcript(talk: MessageIndex, message_of: Callable[[int], Mapping[str, Any]]) -> bytes:
    """The whole of `transcript.md`. `message_of` gives a message by its place in the index."""
    parts = [transcript_head(talk)]
    for place, message in enumerate(talk.messages):
        parts.append(section_bytes(place + 1, message_of(place), talk.said[message.step].time_ns))
    return b"".join(parts)


def checkpoints_tsv(index: LineIndex) -> bytes:
    """A line for each checkpoint, below one with the names of the columns."""
    lines = ["\t".join(COLUMNS)]
    for step in index.steps:
        fields = (
            step.name,
            step.said.id,
            step.parent or "",
            "" if step.step is None else str(step.step),
            step.source or "",
            step.node,
            _iso(step.said.time_ns),
            str(step.said.added),
            "?" if step.changed == UNREADABLE else str(step.changed),
            ", ".join(step.next),
        )
        lines.append("\t".join(one_line(field, MAX_FIELD_CHARS) for field in fields))
    return encoded("\n".join(lines) + "\n")


class Space(NamedTuple):
    """The bytes that a thread takes in the database."""

    tsv: bytes
    """By channel, step and namespace, the largest first: `space.tsv`."""
    bytes: int


def weighed(lineage: Lineage) -> Space:
    """The space of a thread."""
    lines, sizes = ["by\tname\tbytes"], []
    for by in ("channel", "step", "namespace"):
        sizes = lineage.sizes(by)
        lines += [f"{by}\t{one_line(name, MAX_FIELD_CHARS)}\t{size}" for name, size in sizes]
    return Space(encoded("\n".join(lines) + "\n"), sum(size for _, size in sizes))


def _title(talk: MessageIndex) -> str:
    return escaped_inline(talk.title) or "(no message of a human)"


def _inline(text: str) -> str:
    return escaped_inline(one_line(text, MAX_FIELD_CHARS))


def _when(step: Step) -> str:
    return _iso(step.said.time_ns).replace("T", " ").replace("Z", " UTC") if step.said.time_ns else "undated"


def _iso(time_ns: int) -> str:
    return iso_ms(time_ns) if time_ns else ""
