"""The files in a runtime's state, `runtime.state["files"]`, and `apply_files_update`, which merges a `files_update`.

The dict is replaced and never changed in place, for a checkpointer may still hold it. Changes are made one after the
other under one lock for the whole process, so two backends over one state lose no update of each other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from fusebackend.base.context import during

CHANGING = threading.RLock()
"""Held while the files of any state are changed."""


def files_of(runtime: Any) -> Mapping[str, Any]:
    """The files in a runtime's state; none where the state has no such key."""
    state = runtime.state
    files = state.get("files") if isinstance(state, Mapping) else getattr(state, "files", None)
    return files if files is not None else {}


def apply_files_update(runtime: Any, update: Mapping[str, Any]) -> None:
    """Merge a `files_update` into a runtime's state: None deletes a path, anything else is its new file data."""
    with CHANGING:
        files = dict(files_of(runtime))
        for key, record in update.items():
            if record is None:
                files.pop(key, None)
            else:
                files[key] = record
        replace_files(runtime, files)


_collected: ContextVar[dict[str, Any] | None] = ContextVar("fusebackend_files_update", default=None)


def collecting() -> AbstractContextManager[dict[str, Any]]:
    """Gather what `note` is told of meanwhile."""
    return during(_collected, {})


def note(update: Mapping[str, Any] | None, runtime: Any = None) -> None:
    """A backend has answered with this `files_update`: merge it into the state of a runtime, if there is one."""
    collected = _collected.get()
    if update and runtime is not None:
        apply_files_update(runtime, update)
    if update and collected is not None:
        collected.update(update)


def replace_files(runtime: Any, files: dict[str, Any]) -> None:
    """Put another dict in the place of the files in a runtime's state. Call it with `CHANGING` held."""
    if isinstance(runtime.state, MutableMapping):
        runtime.state["files"] = files
    else:
        runtime.state.files = files
