"""Mounting. This package can be called: `fusebackend.mount(backend, mountpoint, **options)` is `api.mount`.

Python binds a subpackage to its name in the parent package as soon as any module of it is imported, so a function
`fusebackend.mount` would be replaced by this package at an unpredictable moment. Being callable, either will do; `help`
and `inspect.signature` tell of the function.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from fusebackend.server.api import mount

        return mount(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        from fusebackend.server.api import mount

        return inspect.signature(mount)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from fusebackend.server.api import mount

        return f"{_about}\nmount{inspect.signature(mount)}\n\n{inspect.getdoc(mount)}\n"


_about = __doc__ or ""
sys.modules[__name__].__class__ = _CallablePackage
