"""POSIX ACLs as extended attributes: what they say of a mode, and a mode of them. The kernel checks them.

The format is that of include/uapi/linux/posix_acl_xattr.h; the rules are those of fs/posix_acl.c, and of acl(5): the
permissions of the group in a mode are the ACL's mask, if it has one. Values are what the kernel has checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
"""The names of the attributes; only directories have the second, which new files below inherit."""

NAMES = frozenset({ACCESS, DEFAULT})

_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")  # tag, permissions, user or group
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32

Entry = tuple[int, int, int]


def entries(value: bytes) -> list[Entry]:
    """Return tag, permissions and id of each entry.

    Raises:
        ValueError: it is no ACL.
    """
    if value[:4] != _VERSION or (len(value) - 4) % _ENTRY.size:
        raise ValueError("not an ACL")
    found = list(_ENTRY.iter_unpack(value[4:]))
    tags = [tag for tag, _, _ in found]
    if any(tags.count(tag) != 1 for tag in (_USER_OBJ, _GROUP_OBJ, _OTHER)) or tags.count(_MASK) > 1:
        raise ValueError("not an ACL")
    return found


def mode_of(value: bytes) -> tuple[int, bool]:
    """Return the permissions of a mode that an access ACL means, and whether it says no more than they do."""
    found = {tag: permissions & 7 for tag, permissions, _ in entries(value)}
    group = found.get(_MASK, found[_GROUP_OBJ])
    is_minimal = not found.keys() & {_USER, _GROUP, _MASK}
    return found[_USER_OBJ] << 6 | group << 3 | found[_OTHER], is_minimal


def with_mode(value: bytes, mode: int) -> bytes:
    """Return an access ACL after chmod(2)."""
    return _changed(value, lambda old, said: said, mode)[0]


def inherited(default: bytes, mode: int) -> tuple[bytes | None, int]:
    """Return the access ACL of a new file in a directory with this default ACL, and its permissions.

    Args:
        mode: the permissions that its maker has asked for; the umask does not count.

    Returns:
        None for an ACL that says no more than the permissions.
    """
    value, permissions = _changed(default, lambda old, said: old & said, mode)
    return (None if mode_of(value)[1] else value), permissions


def masked(value: bytes, allowed: int) -> bytes:
    """Return an ACL in which nobody has more than these permissions (0 to 7)."""
    return _packed([(tag, permissions & allowed, who) for tag, permissions, who in entries(value)])


def _changed(value: bytes, combine: Callable[[int, int], int], mode: int) -> tuple[bytes, int]:
    """Combine the entries that a mode stands for with its permissions; gives the ACL and the mode that it means."""
    found = entries(value)
    has_mask = any(tag == _MASK for tag, _, _ in found)
    said = {_USER_OBJ: mode >> 6 & 7, _MASK if has_mask else _GROUP_OBJ: mode >> 3 & 7, _OTHER: mode & 7}
    changed = [(tag, combine(own, said[tag]) if tag in said else own, who) for tag, own, who in found]
    packed = _packed(changed)
    return packed, mode_of(packed)[0]


def _packed(found: list[Entry]) -> bytes:
    return _VERSION + b"".join(_ENTRY.pack(*entry) for entry in found)
