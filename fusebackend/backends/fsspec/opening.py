"""`fsspec:PROTOCOL://…`: the file system that a URL names, and its backend; which protocols work here."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from fusebackend.base.shown import one_line
from fusebackend.protocol import DEFAULT_TTL_S, WHOLE_FILES
from fusebackend.protocol.scheme import Scheme, Url, UrlError, mask

READ_ONLY = frozenset({"http", "https", "zip", "tar", "github", "git", "libarchive", "reference", "data", "jupyter"})
"""Protocols that can't be written, or only as a whole archive."""

NEEDS_FSSPEC = "needs fsspec: pip install 'fusebackend[fsspec]'"

OWN = ("read_only", "ttl", "on_exists")
"""Parameters that are ours and not the file system's."""


def open_fsspec(url: Url) -> Any:
    """The backend of `fsspec:PROTOCOL://…?…`. Raises `UrlError`."""
    if find_spec("fsspec") is None:
        raise UrlError(f"'{url.masked}' {NEEDS_FSSPEC}")
    import fsspec.core

    from fusebackend.backends.fsspec.remote import FsspecBackend, protocols

    if ":" not in url.rest:  # which fsspec takes for a path of this machine
        raise UrlError(f"'{url.masked}' names no file system; write fsspec:PROTOCOL://PLACE")
    words = dict(url.parameters)
    own = {name: words.pop(name) for name in OWN if name in words}
    options = {name: _value(text) for name, text in words.items()}
    try:
        fs, root = fsspec.core.url_to_fs(url.rest, skip_instance_cache=True, **options)
        read_only = own.pop("read_only", "") == "1" or not READ_ONLY.isdisjoint(protocols(fs))
        given: dict[str, Any] = {**own, "ttl": float(own.get("ttl", DEFAULT_TTL_S))}
        backend = FsspecBackend(fs, root, read_only=read_only, **given)
        backend.volume.remote.contents("")
    except ImportError as error:
        raise UrlError(f"'{url.masked}': {error}") from None
    except Exception as error:  # of any library behind fsspec: whatever it says is what is wrong with the URL
        raise UrlError(f"'{url.masked}' can't be opened: {mask(one_line(error))}") from error
    return backend


def _value(text: str) -> Any:
    """A parameter as JSON has it: `true`, `22`; anything else is a text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


class Protocols(NamedTuple):
    """The protocols that fsspec knows of."""

    installed: list[str]
    missing: dict[str, str]
    """Protocol → what to install, in fsspec's words."""


def installed_protocols() -> Protocols:
    """Return what works here; without fsspec itself nothing does, and `missing` says so. The file systems are imported,
    which takes a second."""
    if find_spec("fsspec") is None:
        return Protocols([], {"fsspec": NEEDS_FSSPEC})
    from fsspec.registry import get_filesystem_class, known_implementations

    found = Protocols([], {})
    for protocol, known in sorted(known_implementations.items()):
        try:
            get_filesystem_class(protocol)
        except Exception as error:  # of any library
            found.missing[protocol] = known.get("err") or f"{type(error).__name__}: {error}"
        else:
            found.installed.append(protocol)
    return found


SCHEMES = {
    "fsspec": Scheme(
        "fsspec:PROTOCOL://PLACE",
        "any file system of fsspec: file, sftp, ftp, webdav, smb, http, zip, hf …",
        open_fsspec,
        parameters=None,
        features=replace(WHOLE_FILES, blocking=True),
    )
}
"""Here, and not in `remote.py`, which needs fsspec: they are known without it."""
