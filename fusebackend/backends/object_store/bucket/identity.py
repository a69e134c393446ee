"""`identity_of`: which bucket an obstore store is, as text that tells it from all others."""

from __future__ import annotations

import json
import secrets
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PLACE = ("account_name", "bucket", "container_name", "endpoint", "region", "url")
"""The settings that say where a bucket is. No other one: credentials stay out of what is hashed and kept."""

_known: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By `id`, for a store has equals and so no hash."""


def identity_of(store: ObjectStore) -> str:
    """The same for two stores of one bucket and prefix; a store that lives in this process is like no other."""
    number = id(store)
    found = _known.get(number)
    if found is not None and found[0]() is store:
        return found[1]
    identity = _identity(store)
    _known[number] = (weakref.ref(store, lambda gone: _forget(number, gone)), identity)
    return identity


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    if (found := _known.get(number)) is not None and found[0] is gone:
        del _known[number]


def _identity(store: Any) -> str:
    config = getattr(store, "config", None)
    prefix = getattr(store, "prefix", None)
    if config is None and prefix is None:
        return secrets.token_hex(16)
    place = {str(name): str(value) for name, value in dict(config or {}).items() if str(name) in _PLACE}
    return json.dumps([type(store).__name__, place, str(prefix or "")], sort_keys=True)
