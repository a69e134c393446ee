"""`identity_of`: which bucket an obstore store is, as text that tells it from all others."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PLACE = ("account_name", "bucket", "container_name", "endpoint", "region", "url")
"""The settings that say where a bucket is. No other one: credentials stay out of what is hashed and kept."""


def identity_of(store: ObjectStore) -> str:
    """The same for two stores of one bucket and prefix; for a store that lives in this process, never the same."""
    config = getattr(store, "config", None)
    prefix = getattr(store, "prefix", None)
    if config is None and prefix is None:
        return secrets.token_hex(16)
    place = {str(name): str(value) for name, value in dict(config or {}).items() if str(name) in _PLACE}
    return json.dumps([type(store).__name__, place, str(prefix or "")], sort_keys=True)
