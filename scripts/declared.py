#!/usr/bin/env python3
"""Write what follows from the table of verbs (`fusebackend/protocol/served.py`) and is read as text: the signatures of
their `a…` forms for editors and mypy, and the pages of reference.

With `--check` nothing is written: it fails, and names the files that are not as they would be written.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fusebackend.control.verbs import VERBS, SocketVerb
from fusebackend.protocol import SERVED, records, served
from fusebackend.protocol.served import Declared, MountVerbs

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by scripts/declared.py -->", "<!-- end -->"
CODES = {"ValueError": "-32602", "PathError": "-32602", "OSError": "-32004"}
STUB = '''"""Made by scripts/declared.py: the `a…` forms of the verbs of a mount."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from fusebackend.protocol.records import {records}
from fusebackend.protocol.served import {served}

__all__ = ["MountProtocol"]

class MountProtocol(MountVerbs):
{methods}
'''


def stub() -> str:
    """Return `awaited.pyi`."""
    methods = ""
    for each in SERVED.values():
        if f"a{each.name}" not in dir(MountVerbs):
            source = ast.parse(textwrap.dedent(inspect.getsource(each.method))).body[0]
            assert isinstance(source, ast.FunctionDef) and source.returns is not None, each.name
            answer = ast.unparse(source.returns)
            methods += f"    async def a{each.name}({ast.unparse(source.args)}) -> {answer}: ...\n"
    own = ", ".join(name for name in vars(served) if name.isupper())
    known = ", ".join(name for name, each in vars(records).items() if dataclasses.is_dataclass(each))
    text = STUB.format(records=known, served=f"{own}, DiffForm, MountVerbs, OnOutput", methods=methods)
    for asked in (["check", "--quiet", "--fix-only", "--select=I,F401"], ["format"]):
        ruff = [Path(sys.executable).with_name("ruff"), *asked, "--stdin-filename=made.pyi", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def api() -> Iterator[str]:
    """Yield the table of verbs in docs/api.md."""
    yield from ("| verb | does | in a view |", "|---|---|---|")
    for each in SERVED.values():
        yield f"| `{each.name}` | {_summary(each.method)} | {'yes' if each.in_view else 'no'} |"


def protocol() -> Iterator[str]:
    """Yield the verbs of a mount in docs/control-protocol.md, and the records of their answers."""
    reached: dict[str, type] = {}
    for name in SERVED:
        verb = VERBS[name]
        given = ", ".join(map(_parameter, msgspec.structs.fields(verb.params)))
        answer = _shape(verb.signature.return_annotation, reached)
        yield f"\n### `{name}`\n\n`{{{given}}}` → {answer}{_flags(verb)}\n"
        yield from _prose(inspect.getdoc(MountVerbs.run if name == "execute" else verb.method) or "")
    yield "\n### Records\n"
    done: set[str] = set()
    while left := [kind for name, kind in sorted(reached.items()) if name not in done]:
        for kind in left:
            done.add(kind.__name__)
            hints = typing.get_type_hints(kind)
            fields = ", ".join(f"`{name}` ({_shape(hint, reached)})" for name, hint in hints.items())
            yield f"\n#### {kind.__name__}\n\n{_wrapped(fields)}\n"
            yield from _prose(inspect.getdoc(kind) or "")


def _flags(verb: SocketVerb | Declared) -> str:
    said = {"long": verb.long, "a change": verb.changes, "not in a view": not verb.in_view, "streams": verb.streams}
    return "".join(f" · {word}" for word, holds in said.items() if holds)


def _parameter(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return field.encode_name
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"{field.encode_name}={json.dumps(default)}"


def _shape(kind: Any, reached: dict[str, type]) -> str:
    """Return a type as JSON has it; records are links, and noted."""
    parts = [_shape(each, reached) for each in typing.get_args(kind) if not isinstance(each, str)]
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(parts)
    if origin in (list, tuple):
        return f"list of {parts[0]}"
    if kind is None:
        return "null"
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        reached[kind.__name__] = kind
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    words = {str: "text", bytes: "base64", int: "number", float: "number", bool: "true or false", type(None): "null"}
    return words.get(kind, "text" if origin is typing.Literal else "object")


def _summary(method: Any) -> str:
    return " ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split())


def _prose(doc: str) -> Iterator[str]:
    """Yield a docstring as Markdown, in the words of JSON."""
    for part in re.sub(r"\bNone\b", "null", doc).split("\n\n"):
        head, _, rest = part.partition("\n")
        if not re.fullmatch(r"(Args|Returns|Raises|Attributes):", head):
            yield _wrapped(" ".join(part.split())) + "\n"
            continue
        if head == "Returns:":
            yield _wrapped("Returns: " + " ".join(rest.split())) + "\n"
            continue
        for item in re.split(r"\n(?=    \S)", textwrap.dedent("\n" + rest).replace("\n", "\n    ").strip("\n")):
            name, _, text = " ".join(item.split()).partition(": ")
            if name.startswith("on_"):
                continue
            codes = sorted({CODES[each] for each in name.split(", ") if each in CODES})
            yield _wrapped(f"- `{name}`{f' ({codes[0]})' if len(codes) == 1 else ''}: {text}", "  ")
        yield ""


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _with(page: str, lines: Iterator[str]) -> str:
    """Return a page with its part that is made."""
    before, _, rest = (ROOT / page).read_text().partition(BEGIN)
    made = "\n".join(lines).strip("\n")
    return f"{before}{BEGIN}\n\n{re.sub(chr(10) + '{3,}', chr(10) * 2, made)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write or check the files."""
    made = {
        "fusebackend/protocol/awaited.pyi": stub(),
        "docs/api.md": _with("docs/api.md", api()),
        "docs/control-protocol.md": _with("docs/control-protocol.md", protocol()),
    }
    stale = [name for name, text in made.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" in sys.argv[1:]:
        sys.exit(f"run scripts/declared.py: {', '.join(stale)} are not as it writes them" if stale else 0)
    for name in stale:
        (ROOT / name).write_text(made[name])


if __name__ == "__main__":
    main()
