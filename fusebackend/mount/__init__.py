"""Mounting: pyfuse3's requests become calls of `vfs`. No module above these knows pyfuse3.

operations.py    the handlers: unpack a request, await the mounted tree once, pack the answer
session.py       one mount, from `mount(2)` to its end
notifier.py      notices to the kernel's caches
pyfuse3_patches/ features that libfuse and pyfuse3 lack

This package can be called: `fusebackend.mount(backend, mountpoint, **options)` is `server.api.mount`, see below.

Python binds a subpackage to its name in the parent package as soon as any module of it is imported, so a function
`fusebackend.mount` would be replaced by this package at an unpredictable moment. Being callable, either will do; `help`
and `inspect.signature` tell of the function. `fusebackend` says where that is (`found_by`): it is above this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


_finders: list[Callable[[], Callable[..., Any]]] = []


def found_by(find: Callable[[], Callable[..., Any]]) -> None:
    """`find` imports the function that this package is, when it is called, and returns it."""
    _finders[:] = [find]


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _finders[0]()(*arguments, **options)

    @property
    def __signature__(self) -> Signature:
        import inspect

        return inspect.signature(_finders[0]())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        import inspect

        mount = _finders[0]()
        return f"{_about}\nmount{inspect.signature(mount)}\n\n{inspect.getdoc(mount)}\n"


_about = __doc__ or ""
sys.modules[__name__].__class__ = _CallablePackage
