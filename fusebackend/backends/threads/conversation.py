"""Messages as files and as one transcript, for `ls`, `less` and `rg`.

`files_of` makes the files of one message below `messages/`:

    0001-human.md           the text; reasoning as a quote, blocks of unknown types as JSON
    0002-ai.calls.json      the tool calls, pretty
    0003-tool-grep.txt      a tool's result, byte for byte
    0007-tool-shot.png      an image, sound or document that came as base64
    0007-tool-shot.artifact.json

A medium that deepagents keeps in a file of its own is linked as `blobs/DIGEST`.

`section` is the same message as a part of `transcript.md`. Long results are cut there, with the name of the whole file.

A message is data of somebody else. Names are made of safe characters only. In Markdown, control characters are shown as
pictures (␛), so that no terminal acts on them; a line that could be taken for a heading of the transcript, or that
would open an HTML block without an end, is escaped; a fence is longer than any run of backticks in it. A fence that
the text leaves open is closed.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import mimetypes
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fusebackend.backends.threads.database.values import encoded, plain, pretty

Message = Mapping[str, Any]

MAX_RESULT_CHARS: Final = 4_000
MAX_RESULT_LINES: Final = 60
"""Of a tool's result or the arguments of a call in the transcript."""

MAX_TEXT_CHARS: Final = 100_000
"""Of any other text in the transcript."""

MAX_TITLE_CHARS: Final = 80
MAX_SLUG_CHARS: Final = 40
MAX_NAME_CHARS: Final = 64

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_CONTROLS: Final = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    127: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
_ESCAPED: Final = re.compile(
    r"^(\s*(?:[>*+-]\s*|[0-9]+[.)]\s*)*)(?=#|=+\s*$|-+\s*$|<(?:script|pre|style|textarea|!|\?))", re.IGNORECASE
)
"""What would be a heading, underline one, or open an HTML block that needs an end; in a list or quote too."""

_NOTABLE: Final = re.compile(r"^\s*(?:[>*+=#<`~-]|[0-9]+[.)])", re.MULTILINE)
"""At the beginning of a line: without it neither `_ESCAPED` nor `_FENCE` is in a text."""

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_BACKTICKS: Final = re.compile(r"`+")

_SHOWN_FIELDS: Final = frozenset({
    "type", "content", "id", "name", "tool_calls", "invalid_tool_calls", "tool_call_id", "status", "artifact",
    "response_metadata", "usage_metadata", "additional_kwargs", "example", "chunk_position", "tool_call_chunks",
})  # fmt: skip
"""Fields with a place of their own, and those about the request, which are in `messages.jsonl`."""

_CALLS: Final = frozenset({"tool_use", "tool_call", "function_call"})
"""Blocks that are calls of tools."""

BLOBS: Final = "blobs"
"""The directory of media below the `artifacts_root` of deepagents, and the link to it in a thread."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

_MIME_SUFFIXES: Final = {"image/jpeg": ".jpg", "audio/mpeg": ".mp3", "audio/wav": ".wav", "text/plain": ".txt"}


class File(NamedTuple):
    """A file of `messages/`."""

    name: str
    data: bytes


class Block(NamedTuple):
    """A part of a message's content.

    Attributes:
        kind: `text`, `reasoning`, `media`, `call`, or `other`.
        text: the text, or pretty JSON of a block that is not known.
        data: the bytes of a medium, empty where the block only names a URL (in `text`).
        suffix: of a medium's file, with the dot.
        blob: the digest of a medium that deepagents keeps in a file of its own.
    """

    kind: str
    text: str = ""
    data: bytes = b""
    suffix: str = ""
    blob: str = ""


# -- one message ---------------------------------------------------------------------------------------------------


def files_of(number: int, message: Message) -> list[File]:
    """The files of one message, whose place in the conversation is `number`, from 1 on."""
    kind, made = _kind(message), calls(message)
    stem, parts = _stem(number, message, kind), _blocks(message, made)
    media = list(_named_media(stem, parts))
    links = {**dict(media), **_blobs(parts, "../")}
    found = []
    if kind == "tool":
        text = "\n".join(block.text for block in parts if block.kind in ("text", "reasoning"))
        others = [
            block for block in parts if block.kind in ("other", "call") or (block.kind == "media" and not block.data)
        ]
        if text or not (media or others):
            found.append(File(f"{stem}.txt", encoded(text)))
        if others:
            found.append(File(f"{stem}.md", encoded(_markdown(others, links))))
    else:
        found.append(File(f"{stem}.md", encoded(_markdown(parts, links) + _rest(message))))
    found += [File(name, block.data) for block, name in media]
    if made:
        found.append(File(f"{stem}.calls.json", encoded(pretty(made) + "\n")))
    if message.get("artifact") is not None:
        found.append(File(f"{stem}.artifact.json", encoded(pretty(message["artifact"]) + "\n")))
    return found


def section(number: int, message: Message, time_ns: int, *, directory: str = "messages") -> str:
    """The message as a part of the transcript, with a heading.

    Args:
        time_ns: when the checkpoint was made that brought it, since 1970; 0: not known.
        directory: where the files of `files_of` are, as the transcript is to name it.
    """
    kind, made = _kind(message), calls(message)
    stem, parts = _stem(number, message, kind), _blocks(message, made)
    media = {block: f"{directory}/{name}" for block, name in _named_media(stem, parts)} | _blobs(parts, "")
    out = [f"## {_heading(number, message, kind, time_ns)}\n\n"]
    if kind == "tool":
        text = "\n".join(block.text for block in parts if block.kind in ("text", "reasoning"))
        if text:
            out.append(fenced(*_cut(text, f"{directory}/{stem}.txt")))
        out.append(_markdown([block for block in parts if block.kind not in ("text", "reasoning")], media))
    else:
        out.append(_markdown(parts, media, whole=f"{directory}/{stem}.md"))
    for call in made:
        name, shown = one_line(str(call.get("name") or "?"), MAX_NAME_CHARS), pretty(call.get("args"))
        why = f": {one_line(str(call['error']), MAX_TITLE_CHARS)}" if call.get("error") else ""
        out.append(f"**calls {escaped_inline(name)}**{escaped_inline(why)}\n\n")
        out.append(fenced(*_cut(shown, f"{directory}/{stem}.calls.json"), language="json"))
    return "".join(out)


def _heading(number: int, message: Message, kind: str, time_ns: int) -> str:
    name = message.get("name")
    parts = [str(number), f"{kind} {_safe(str(name))}" if name else kind]
    if time_ns:
        # `strftime` takes five times as long.
        parts.append(datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC).isoformat()[11:19])
    if message.get("status") not in (None, "success"):
        parts.append(_safe(str(message["status"])))
    return " · ".join(parts)


def _stem(number: int, message: Message, kind: str) -> str:
    name = message.get("name")
    return f"{number:04}-{kind}-{_safe(str(name))}" if kind == "tool" and name else f"{number:04}-{kind}"


def _kind(message: Message) -> str:
    return _safe(str(message.get("type") or "unknown"))


def _safe(text: str) -> str:
    """Text as a part of a file's name: letters, digits, `_`, `.` and `-`, and no dot in front."""
    if text.isidentifier() and text.isascii():
        return text[:MAX_NAME_CHARS]
    return _UNSAFE.sub("_", text)[:MAX_NAME_CHARS].lstrip(".") or "_"


def calls(message: Message) -> list[dict[str, Any]]:
    """The tool calls of a message, those with broken arguments included: `id`, `name`, `args`, perhaps `error`."""
    found = []
    for field in ("tool_calls", "invalid_tool_calls"):
        listed = message.get(field)
        for call in listed if isinstance(listed, (list, tuple)) else ():
            made = plain(call)
            if isinstance(made, dict):
                found.append({key: value for key, value in made.items() if key != "type" and value is not None})
            else:
                found.append({"args": made})
    return found


# -- content -------------------------------------------------------------------------------------------------------


def _blocks(message: Message, made: list[dict[str, Any]]) -> list[Block]:
    """The content of a message with these tool calls, in the forms of LangChain 0.3 and 1.x, OpenAI and Anthropic."""
    content = message.get("content")
    extra = message.get("additional_kwargs")
    found = []
    if isinstance(extra, Mapping) and isinstance(extra.get("reasoning_content"), str):
        found.append(Block("reasoning", extra["reasoning_content"]))
    if isinstance(content, str):
        return found + ([Block("text", content)] if content else [])
    known = {call.get("id") for call in made}
    for item in content if isinstance(content, (list, tuple)) else [] if content is None else [content]:
        found += _block(item, known)
    return found


def _block(item: Any, known_calls: set[Any]) -> Iterator[Block]:
    if isinstance(item, str):
        yield Block("text", item)
        return
    block = plain(item)
    if not isinstance(block, dict):
        yield Block("other", pretty(block))
        return
    kind = block.get("type")
    if kind in ("text", "output_text", "input_text") and isinstance(block.get("text"), str):
        yield Block("text", block["text"])
        yield from _citations(block)
    elif kind in ("reasoning", "thinking"):
        yield _reasoning(block)
    elif kind in _CALLS and (block.get("call_id") or block.get("id")) in known_calls:
        return  # the same call is in `tool_calls`
    else:
        yield _media(block) or Block("other", pretty(block))


def _reasoning(block: dict[str, Any]) -> Block:
    for field in ("reasoning", "thinking", "text"):
        if isinstance(block.get(field), str) and block[field]:
            return Block("reasoning", block[field])
    summary = block.get("summary")
    texts = (
        [part["text"] for part in summary if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if isinstance(summary, list)
        else []
    )
    return Block("reasoning", "\n\n".join(texts)) if texts else Block("other", pretty(block))


def _citations(block: dict[str, Any]) -> Iterator[Block]:
    found = block.get("annotations") or block.get("citations")
    for citation in found if isinstance(found, list) else ():
        cited = citation if isinstance(citation, dict) else {"citation": citation}
        name, url = cited.get("title") or cited.get("document_title"), cited.get("url")
        if isinstance(url, str):
            yield Block("text", f"[{one_line(str(name or url), MAX_TITLE_CHARS)}] {one_line(url, 2_000)}")
        else:
            yield Block("other", pretty(cited))


def _media(block: dict[str, Any]) -> Block | None:
    """An image, sound or document, from each form in which providers have it."""
    if block.get("type") not in ("image", "image_url", "audio", "video", "file", "document", "input_image", "media"):
        return None
    given = block.get("source")
    source: dict[str, Any] = given if isinstance(given, dict) else {}
    url = block.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url or block.get("url") or source.get("url")
    blob = block.get("deepagents_blob")
    if isinstance(blob, str) and _DIGEST.fullmatch(blob):
        return Block("media", blob=blob)
    mime = block.get("mime_type") or block.get("media_type") or source.get("media_type") or ""
    encoded = block.get("base64") or source.get("data") or block.get("data")
    if isinstance(url, str) and url.startswith("data:"):
        head, _, encoded = url.partition(",")
        mime, url = head.removeprefix("data:").removesuffix(";base64"), None
    if isinstance(encoded, str):
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return None
        suffix = _MIME_SUFFIXES.get(str(mime)) or mimetypes.guess_extension(str(mime)) or ".bin"
        return Block("media", "", data, suffix) if data else None
    return Block("media", f"{block['type']}: {one_line(url, 2_000)}") if isinstance(url, str) else None


def _named_media(stem: str, parts: list[Block]) -> Iterator[tuple[Block, str]]:
    """Each medium with the name of its file."""
    stored = (block for block in parts if block.kind == "media" and block.data)
    for number, block in enumerate(stored, 1):
        yield block, f"{stem}{'' if number == 1 else f'-{number}'}{block.suffix}"


def _blobs(parts: list[Block], above: str) -> dict[Block, str]:
    """The paths of media that deepagents keeps, through the link `blobs` of a thread, which is in the directory
    `above`."""
    return {block: f"{above}{BLOBS}/{block.blob}" for block in parts if block.blob}


def _rest(message: Message) -> str:
    """Fields that have no place of their own."""
    if message.keys() <= _SHOWN_FIELDS:
        return ""
    left = {key: value for key, value in message.items() if key not in _SHOWN_FIELDS and value not in (None, {}, [])}
    return fenced(pretty(left), language="json") if left else ""


# -- Markdown ------------------------------------------------------------------------------------------------------


def _markdown(parts: list[Block], media: Mapping[Block, str], *, whole: str | None = None) -> str:
    """Blocks as Markdown. `whole` is the file to name where a text is cut; without it nothing is."""
    out = []
    for block in parts:
        text, note = _cut(block.text, whole, MAX_TEXT_CHARS, None) if whole else (block.text, "")
        if block.kind == "text":
            out.append(f"{contained(text)}\n\n{note}")
        elif block.kind == "reasoning":
            quoted = "".join(f"> {line}\n" for line in contained(text).split("\n"))
            out.append(f"{quoted}\n{note}")
        elif block.kind == "media":
            out.append(
                f"![{media[block].rpartition('/')[2]}]({media[block]})\n\n"
                if block in media
                else f"{contained(text)}\n\n"
            )
        else:
            out.append(fenced(text, note, language="json"))
    return "".join(out)


def contained(text: str) -> str:
    """Text of somebody else as Markdown that ends where it ends, and makes no heading of its own."""
    text = text.translate(_CONTROLS)
    if not _NOTABLE.search(text):
        return text
    lines, closing = [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if closing:
            if mark and mark[1].startswith(closing) and not mark[2].strip():
                closing = ""
        elif mark and (mark[1][0] == "~" or "`" not in mark[2]):
            closing = mark[1]
        else:
            line = _ESCAPED.sub(r"\1\\", line)
        lines.append(line)
    return "\n".join([*lines, closing] if closing else lines)


def fenced(text: str, note: str = "", *, language: str = "") -> str:
    """Text between fences that are longer than any run of backticks in it, then a note."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}{language}\n{text.translate(_CONTROLS)}{end}{fence}\n\n{note}"


def _cut(text: str, whole: str, chars: int = MAX_RESULT_CHARS, lines: int | None = MAX_RESULT_LINES) -> tuple[str, str]:
    """The beginning of a text, and a note that says where all of it is; the text and nothing if it is short."""
    shown = text[:chars]
    if lines is not None and shown.count("\n") >= lines:
        shown = "\n".join([*shown.split("\n", lines)[:lines], ""])
    if len(shown) == len(text):
        return text, ""
    return shown, f"*… {len(text) - len(shown):,} more characters: [{whole}]({whole})*\n\n"


def one_line(text: str, limit: int) -> str:
    """Text in one line without control characters, cut with `…` if it is longer than `limit` characters."""
    beginning = text[: 4 * limit]
    if not beginning.isprintable():
        beginning = "".join(char if char.isprintable() else " " for char in beginning)
    line = " ".join(beginning.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def escaped_inline(text: str) -> str:
    """Text within a line of Markdown, without a meaning of its own."""
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)


# -- a whole conversation ------------------------------------------------------------------------------------------


def title(messages: Iterable[Message]) -> str:
    """The first line of the first text that a human wrote; nothing where there is none."""
    for message in messages:
        if message.get("type") in ("human", "user"):
            for block in _blocks(message, calls(message)):
                if block.kind == "text" and block.text.strip():
                    return one_line(block.text.strip().split("\n", 1)[0], MAX_TITLE_CHARS)
    return ""


def slug(text: str) -> str:
    """A title as a part of a name: words of small letters and digits, joined by `-`."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    fitting = textwrap.shorten(" ".join(words), MAX_SLUG_CHARS, placeholder="", break_long_words=False)
    return fitting.replace(" ", "-") or (words[0][:MAX_SLUG_CHARS] if words else "untitled")
