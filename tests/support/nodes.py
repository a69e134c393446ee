"""Files of a volume by its kernel face: made, read, overwritten and found as a kernel does it."""

from __future__ import annotations

import os

from fusebackend.protocol import ROOT_NODE, Volume
from fusebackend.testing.by_path import OWNER, overwrite
from fusebackend.volumes.contents import opened

__all__ = ["ME", "names", "node_at", "overwrite", "put", "whole"]

ME = OWNER


def put(volume: Volume, name: bytes, data: bytes = b"", parent: int = ROOT_NODE, mode: int = 0o644) -> int:
    """Make a file, write it and close it."""
    node = volume.create(parent, name, mode, os.O_RDWR, ME).node
    if data:
        volume.write(node, 0, data)
    volume.flush(node)
    volume.release(node, os.O_RDWR)
    return node


def whole(volume: Volume, node: int) -> bytes:
    """Return all bytes of a file of up to 1 MiB."""
    with opened(volume, node, os.O_RDONLY):
        return volume.read(node, 0, 1 << 20)


def node_at(volume: Volume, path: str | bytes) -> int:
    node = ROOT_NODE
    for name in os.fsencode(path).split(b"/"):
        node = volume.lookup(node, name).node if name else node
    return node


def names(volume: Volume, node: int = ROOT_NODE) -> list[bytes]:
    """Return the names in a directory, of up to 1,000."""
    return [name for name, _ in volume.readdir(node, b"", 1000)]
