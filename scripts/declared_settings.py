"""Write what follows from the settings of a mount (`fusebackend/config.py`) and the schemes of backends, and is read as
text: the signature of `mount()` for editors and mypy, and tables of the reference. `declared.py` writes the files.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from made import ROOT, filled, formatted

from fusebackend.base.settings import Field, Setting, keys_of, settings_of
from fusebackend.config import MountSettings, default_text, scalars, words_of
from fusebackend.server.api import mount
from fusebackend.urls import SCHEMES, meanings

STUB = '''"""Made by scripts/declared.py: `mount()` as `MountSettings` declares it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

{imports}
from fusebackend.protocol import BackendLike
from fusebackend.server.in_process import Mount

def mount(
    backend: BackendLike, mountpoint: str | os.PathLike[str], *, runtime: Any = None,
    {parameters}
) -> Mount:
    """{doc}"""
'''


def stub() -> str:
    """Return `api.pyi`."""
    fields = settings_of(MountSettings)
    records = sorted({(each.__module__, each.__name__) for field in fields for each in field.records})
    imports = "\n".join(f"from {module} import {name}" for module, name in records)
    parameters = ", ".join(map(_parameter, fields))
    doc = (mount.__doc__ or "").replace("\\", "\\\\").replace("\n", "\n    ")
    return formatted(STUB.format(imports=imports, parameters=parameters, doc=doc))


def _parameter(field: Field) -> str:
    may_be_none = "" if field.type in (bool, float) or "None" in _shown(field.type) else " | None"
    is_plain = field.default is None or isinstance(field.default, (bool, float, str))
    return f"{field.name}: {_shown(field.type)}{may_be_none} = {repr(field.default) if is_plain else '...'}"


def _shown(kind: Any) -> str:
    """Return a type as it is written."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, types.UnionType):
        return " | ".join(map(_shown, parts))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_shown, parts))}]"
    return "None" if kind is type(None) else str(getattr(kind, "__name__", kind))


def reference() -> Iterator[str]:
    """Yield the tables of settings in docs/command-line.md."""
    yield from ("| key | words of `-o` | default | is |", "|---|---|---|---|")
    for field in scalars():
        words = ", ".join(f"`{word}`" for word in words_of(field))
        yield f"| `{field.key}` | {words} | {default_text(field)} | {_text(field.setting)} |"
    tables = [field for field in keys_of(MountSettings) if field.records]
    for field in tables:
        yield f"\n`[{field.key}]`: {_text(field.setting)}\n"
        yield from ("| key | default | is |", "|---|---|---|")
        for each in keys_of(field.records[0]):
            yield f"| `{each.key}` | {default_text(each)} | {_text(each.setting)} |"


def _text(setting: Setting) -> str:
    return setting.text.replace("*", "\\*")


PARAMETERS = re.compile(r"(\| parameter \| of \| meaning \|\n\|---\|---\|---\|\n)((?:\|.*\n)*)")


def parameter_tables() -> Iterator[tuple[str, str]]:
    """Yield the pages that explain parameters of URLs: that of a backend its own, docs/urls.md those of several."""
    links = re.findall(r"^\| \[(.*?)\]\((\S+)\) \|", (ROOT / "docs/urls.md").read_text(), re.MULTILINE)
    page_of = {name: page for urls, page in links for name in SCHEMES if re.search(rf"`{re.escape(name)}:", urls)}
    rows: dict[str, str] = {"urls.md": ""}
    most = len([scheme for scheme in SCHEMES.values() if scheme.parameters is not None])
    for name, (meaning, schemes) in meanings().items():
        pages = {page_of[scheme] for scheme in schemes}
        known = "all" if len(schemes) == most else ", ".join(f"`{scheme}:`" for scheme in schemes)
        page = pages.pop() if len(pages) == 1 else "urls.md"
        rows[page] = rows.get(page, "") + f"| `{name}` | {known} | {meaning} |\n"
    for page, made in rows.items():
        text = (ROOT / "docs" / page).read_text()
        yield f"docs/{page}", PARAMETERS.sub(lambda found, made=made: found[1] + made, text)  # type: ignore[misc]


def files() -> dict[str, str]:
    """Return the files that follow from settings and schemes."""
    page = "docs/command-line.md"
    return {"fusebackend/server/api.pyi": stub(), page: filled(page, reference()), **dict(parameter_tables())}
