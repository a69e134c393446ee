"""`mount()`. Its signature and documentation are those of `MountSettings`; editors and mypy read them in `api.pyi`,
which `scripts/declared.py` writes."""

from __future__ import annotations

import inspect
import os
import textwrap
from typing import TYPE_CHECKING, Any

from fusebackend.base.settings import Field, settings_of
from fusebackend.config import MountSettings
from fusebackend.server.in_process import Mount

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.protocol import BackendLike

DOCUMENTATION = """Mount a backend of this process on an empty directory.

    with fusebackend.mount(InMemoryBackend(), "/mnt/agent") as files:
        files.write("/hello.txt", "hello\\n")

Args:
    backend: Any backend, a `CompositeBackend` for several; it stays yours, and is not closed at the end.
    mountpoint: An empty directory. A dead mount of an earlier process there is cleared away.
    runtime: For a backend factory (`lambda runtime: StateBackend(runtime)`, or a class): its argument.
{settings}

Raises:
    MountError: the directory can't be mounted on, this process has a mount already, or the name of the mount's own
        directory is taken.
    ValueError: an option is unknown, or its value is invalid.
    TypeError: `backend` is a factory and there is no `runtime`, or it is no backend at all.
"""


def mount(backend: BackendLike, mountpoint: str | os.PathLike[str], *, runtime: Any = None, **settings: Any) -> Mount:
    said = {name: value for name, value in settings.items() if value is not None}
    words = said.pop("options", ())
    first = {"read_only": True} if said.get("read_only") else {}  # no word makes writable what must not be
    return Mount(_composite(backend, runtime), mountpoint, MountSettings(**said).but(words, **first))


def _parameter(setting: Field) -> inspect.Parameter:
    """Return the keyword of a setting. None, which old calls give, is as if it was not given."""
    of = setting.type if setting.type in (bool, float) else setting.type | None
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=of)


def _described(setting: Field) -> str:
    unit = "" if setting.setting.unit is None else f" In {setting.setting.unit.name}."
    its = "".join(f" `{each.__module__}.{each.__qualname__}`." for each in setting.records)
    said = f"{setting.name}: {setting.setting.text}{unit}{its}"
    return textwrap.fill(said, 114, initial_indent="    ", subsequent_indent=" " * 8, break_on_hyphens=False)


_SETTINGS = settings_of(MountSettings)
mount.__doc__ = DOCUMENTATION.format(settings="\n".join(map(_described, _SETTINGS)))
_own = inspect.signature(mount)
_named = [each for each in _own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
mount.__signature__ = _own.replace(parameters=[*_named, *map(_parameter, _SETTINGS)])  # type: ignore[attr-defined]


def _composite(backend: Any, runtime: Any) -> CompositeBackend:
    """The backend at the root of a tree, with every factory in it called."""
    from fusebackend.composite.backend import adopted, resolve, unwrapped
    from fusebackend.dialects.agent_face import is_named_factory

    backend = unwrapped(backend)  # another's composite has factories in it, too
    if runtime is not None or is_named_factory(backend):
        backend = resolve(backend, runtime)
    return adopted(backend, "give mount() a runtime= to call it with, or call it")
