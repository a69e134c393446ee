"""Agent paths: normalise at the door, route by whole segments. Pure functions.

A normalised path starts with `/`, has no empty, `.` or `..` segments, and ends with `/` only when it is the root.
Text is UTF-8 with surrogateescape, so that any name Linux allows survives the round trip (SEMANTICS: names are bytes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

AgentPath = NewType("AgentPath", str)
"""A path that `normalise` has passed."""

ROOT = AgentPath("/")

TREES_NAME = ".fusebackend"
"""The trees directory in the root of a mount, unless its options give it another name."""


class PathError(ValueError):
    """A path that no backend may be asked for; its text is one line for the user."""


def normalise(path: str) -> AgentPath:
    """Resolve `.`, `..` and repeated slashes by name alone, as `realpath -m -s` does.

    A relative path is taken from the root. `..` may not climb above the root, and `~` is not a home directory here.

    Raises:
        PathError: the path is empty, not a string, holds a NUL, starts with `~`, or climbs above the root.
    """
    if not isinstance(path, str) or not path:
        raise PathError("Path is empty")
    if "\0" in path:
        raise PathError(f"Path {path!r} holds a NUL character")
    if path.startswith("~"):
        raise PathError(f"Path traversal not allowed: '{path}' starts with '~'")
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not segments:
                raise PathError(f"Path traversal not allowed: '{path}' climbs above the root")
            segments.pop()
        elif segment not in ("", "."):
            segments.append(segment)
    return AgentPath("/" + "/".join(segments))


def split(path: str) -> list[bytes]:
    """The names along a normalised path, as bytes; the root has none."""
    return [name for name in to_name(path).split(b"/") if name]


def parent_and_name(path: AgentPath) -> tuple[AgentPath, str]:
    """The directory that holds `path`, and its name there; for the root, the root and an empty name."""
    parent, _, name = path.rpartition("/")
    return AgentPath(parent or "/"), name


def join(directory: str, name: str) -> AgentPath:
    """The path of `name` in a normalised directory."""
    return AgentPath(f"{directory}/{name}" if directory != "/" else f"/{name}")


def to_name(text: str) -> bytes:
    """A segment of an agent path as the bytes of a directory entry."""
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """The bytes of a directory entry as a segment of an agent path."""
    return name.decode("utf-8", "surrogateescape")


def is_below(path: str, directory: str) -> bool:
    """Return True if `path` is the normalised `directory` itself or below it. Whole segments only."""
    return directory == "/" or path == directory or path.startswith(directory + "/")


def in_route(path: AgentPath, prefixes: Iterable[AgentPath]) -> tuple[AgentPath, AgentPath]:
    """Return the prefix of the route that a path is in, and the path there. One prefix must be `/`."""
    prefix = max((each for each in prefixes if is_below(path, each)), key=len)
    return prefix, AgentPath(path if prefix == ROOT else path[len(prefix) :] or ROOT)


def mount_path(prefix: AgentPath, path: bytes) -> str:
    """Return the path in the mount of one inside a route: of bytes, with a slash at the begin."""
    inner = to_text(path)
    return inner if prefix == ROOT else prefix + inner.rstrip("/")


def normalise_prefix(prefix: str) -> AgentPath:
    """Check a route's prefix: `memories`, `/memories` and `/memories/` all mean `/memories`.

    Raises:
        PathError: the prefix is empty or the root, has an empty segment, or holds `.`, `..` or a leading `~`.
    """
    if not isinstance(prefix, str) or not prefix.strip("/"):
        raise PathError(f"Route prefix {prefix!r} names no directory below '/'; give one such as '/memories/'")
    body = prefix.removeprefix("/").removesuffix("/")
    for segment in body.split("/"):
        if segment == "":
            raise PathError(f"Route prefix '{prefix}' has an empty segment; write it with single slashes")
        if segment in (".", ".."):
            raise PathError(f"Route prefix '{prefix}' holds '{segment}'; write the path it means")
    if body.startswith("~") or "\0" in body:
        raise PathError(f"Route prefix '{prefix}' must be a plain path such as '/memories/'")
    return AgentPath("/" + body)


def why_no_name(name: str) -> str | None:
    """Return why a text can't name an entry of a directory, as the end of an error; None if it can. A name that is too
    long is not found out."""
    if name in ("", ".", ".."):
        return "is no name of a directory"
    if "/" in name or "\0" in name:
        return "holds a slash" if "/" in name else "holds a NUL"
    try:
        to_name(name)
    except UnicodeEncodeError:
        return "is no text"
    return None
