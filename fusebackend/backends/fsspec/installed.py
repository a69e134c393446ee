"""Which protocols of fsspec work here, and what fsspec says to install for the others.

No file system is imported, which takes seconds: a module's own imports are read from its source, and looked for.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

NEEDS_FSSPEC = "needs fsspec: pip install 'fusebackend[fsspec]'"


class Protocols(NamedTuple):
    """The protocols that fsspec knows of."""

    installed: list[str]
    missing: dict[str, str]
    """Protocol → what to install, in fsspec's words."""


def installed_protocols() -> Protocols | None:
    """Return None where fsspec itself is not installed."""
    if find_spec("fsspec") is None:
        return None
    from fsspec.registry import known_implementations

    installed = {entry.name for entry in entry_points(group="fsspec.specs")}
    missing = {}
    for protocol, known in known_implementations.items():
        if _is_there(known["class"].rpartition(".")[0]):
            installed.add(protocol)
        elif protocol not in installed:
            missing[protocol] = known.get("err") or f"install {known['class'].partition('.')[0]}"
    return Protocols(sorted(installed), dict(sorted(missing.items())))


def _is_there(module: str) -> bool:
    """Whether a module and what it imports are installed."""
    if not _found(module.partition(".")[0]):
        return False
    spec = find_spec(module) if module.startswith("fsspec.") else None  # others would be imported by that
    return spec is None or spec.origin is None or all(map(_found, _imports(Path(spec.origin))))


def _found(package: str) -> bool:
    return package in sys.stdlib_module_names or find_spec(package) is not None


def _imports(source: Path) -> Iterator[str]:
    """The packages that a module imports when it is imported, not in its functions or in a `try`."""
    for statement in ast.parse(source.read_bytes()).body:
        if isinstance(statement, ast.Import):
            yield from (name.name.partition(".")[0] for name in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module.partition(".")[0]
