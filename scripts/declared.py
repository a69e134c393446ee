#!/usr/bin/env python3
"""Write what follows from declarations and is read as text. From the table of verbs (`fusebackend/protocol/served.py`):
the signatures of their `a…` forms for editors and mypy, and pages of reference. From settings: `declared_settings.py`.

With `--check` nothing is written: it fails, and names the files that are not as they would be written.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import declared_settings
import msgspec
from made import ROOT, filled, formatted

from fusebackend.control.verbs import VERBS
from fusebackend.protocol import (
    AGENT_VERBS,
    SEED_VERBS,
    SERVED,
    BackendProtocol,
    SandboxBackendProtocol,
    records,
    served,
)
from fusebackend.protocol.served import MountProtocol

CODES = {"ValueError": " (-32602)", "PathError": " (-32602)", "OSError": " (-32004)"}
STUB = '''"""Made by scripts/declared.py: the `a…` forms of verbs: of backends, of commands, of mounts."""

import abc
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from fusebackend.protocol.records import {records}
from fusebackend.protocol.served import {served}

{classes}
'''


def stub() -> str:
    """Return `awaited.pyi`."""
    kinds = {
        "AwaitedFiles(abc.ABC)": [getattr(BackendProtocol, name) for name in AGENT_VERBS + SEED_VERBS],
        "AwaitedCommands": [SandboxBackendProtocol.execute],
        "Awaited": [each.method for name, each in SERVED.items() if f"a{name}" not in dir(SandboxBackendProtocol)],
    }
    classes = "\n".join(f"class {kind}:\n{''.join(map(_awaited, methods))}" for kind, methods in kinds.items())
    own = ", ".join(name for name in vars(served) if name.isupper())
    known = ", ".join(name for name in records.__all__ if name != "WORKTREE")
    return formatted(STUB.format(records=known, served=f"{own}, DiffForm, OnOutput", classes=classes))


def _awaited(method: Any) -> str:
    source = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    assert isinstance(source, ast.FunctionDef) and source.returns is not None, method
    return f"    async def a{source.name}({ast.unparse(source.args)}) -> {ast.unparse(source.returns)}: ...\n"


def api() -> Iterator[str]:
    """Yield the table of verbs in docs/api.md."""
    yield from ("| verb | does | in a view |", "|---|---|---|")
    for each in SERVED.values():
        summary = " ".join((inspect.getdoc(each.method) or "").partition("\n\n")[0].split())
        yield f"| `{each.name}` | {summary} | {'yes' if each.in_view else 'no'} |"


def protocol() -> Iterator[str]:
    """Yield the verbs of a mount in docs/control-protocol.md, and the records of their answers."""
    reached: dict[str, type] = {}
    for name in SERVED:
        verb = VERBS[name]
        given = ", ".join(map(_parameter, msgspec.structs.fields(verb.params)))
        answer = _shape(verb.signature.return_annotation, reached)
        said = {"long": verb.long, "a change": verb.changes, "not in a view": not verb.in_view, "streams": verb.streams}
        flags = "".join(f" · {word}" for word, holds in said.items() if holds)
        yield f"\n### `{name}`\n\n`{{{given}}}` → {answer}{flags}\n"
        yield from _prose(inspect.getdoc(MountProtocol.run if name == "execute" else verb.method) or "")
    yield "\n### Records\n"
    done: dict[str, type] = {}
    while left := {name: kind for name, kind in sorted(reached.items()) if name not in done}:
        done |= left
        for kind in left.values():
            hints = typing.get_type_hints(kind)
            fields = ", ".join(f"`{name}` ({_shape(hint, reached)})" for name, hint in hints.items())
            yield f"\n#### {kind.__name__}\n\n{_wrapped(fields)}\n"
            yield from _prose(inspect.getdoc(kind) or "")


def _parameter(field: msgspec.structs.FieldInfo) -> str:
    default = field.default_factory() if field.default is msgspec.NODEFAULT and not field.required else field.default
    return field.encode_name + ("" if field.required else f"={json.dumps(default)}")


def _shape(kind: Any, reached: dict[str, type]) -> str:
    """Return a type as JSON has it; records are links, and noted."""
    parts = [_shape(each, reached) for each in typing.get_args(kind) if not isinstance(each, str)]
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(parts)
    if origin is list:
        return f"list of {parts[0]}"
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        reached[kind.__name__] = kind
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    words = {
        str: "text",
        bytes: "base64",
        int: "number",
        float: "number",
        bool: "true or false",
        None: "null",
        type(None): "null",
    }
    return words.get(kind, "text" if origin is typing.Literal else "object")


def _prose(doc: str) -> Iterator[str]:
    """Yield a docstring as Markdown, in the words of JSON."""
    for part in re.sub(r"\bNone\b", "null", doc).split("\n\n"):
        head, _, rest = part.partition("\n")
        if head not in ("Args:", "Raises:", "Attributes:"):
            yield _wrapped(" ".join(part.split())) + "\n"
            continue
        for item in re.split(r"\n(?=    \S)", textwrap.dedent("\n" + rest).replace("\n", "\n    ").strip("\n")):
            name, _, text = " ".join(item.split()).partition(": ")
            if not name.startswith("on_"):
                yield _wrapped(f"- `{name}`{CODES.get(name, '')}: {text}", "  ")
        yield ""


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description="Write what follows from declarations.")
    parser.add_argument("--check", action="store_true", help="write nothing: fail if a file is not as it would be")
    asked = parser.parse_args()
    made = {
        "fusebackend/protocol/awaited.pyi": stub(),
        "docs/api.md": filled("docs/api.md", api()),
        "docs/control-protocol.md": filled("docs/control-protocol.md", protocol()),
        **declared_settings.files(),
    }
    stale = [name for name, text in made.items() if (ROOT / name).read_text() != text]
    if asked.check:
        sys.exit(f"run scripts/declared.py: {', '.join(stale)} are not as it writes them" if stale else 0)
    for name in stale:
        (ROOT / name).write_text(made[name])


if __name__ == "__main__":
    main()
