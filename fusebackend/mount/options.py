"""`MountOptions`: how to mount. No pyfuse3 here: a composite that is served without a mount has them, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebackend.linux.mount_table import SUBTYPE

ACL = "acl"
"""The word of `extra` that is not libfuse's."""


@dataclass(frozen=True)
class MountOptions:
    """How to mount.

    `allow_other` lets other users in (modes still apply); `may_keep_awake` lets processors idle without sleep during
    bursts (`pyfuse3_patches/cpu_latency.py`); `extra` are libfuse's own `-o` words, and `acl`, with which the kernel
    checks POSIX ACLs; `description` is added to `status`, route URLs under `"urls"` by prefix; `source` is what the
    table of mounts shows as the device.
    """

    allow_other: bool = False
    read_only: bool = False
    may_keep_awake: bool = False
    extra: tuple[str, ...] = ()
    description: Mapping[str, Any] = field(default_factory=dict)
    source: str = SUBTYPE

    @property
    def acls(self) -> bool:
        """Whether the kernel is to check POSIX ACLs."""
        return ACL in self.extra

    def words(self) -> set[str]:
        """What libfuse is told. It does not know of ACLs, on which FUSE_INIT agrees."""
        source = re.sub(r"([\\,])", r"\\\1", self.source)  # as libfuse's fuse_opt_add_opt_escaped does
        words = {f"fsname={source}", f"subtype={SUBTYPE}", "default_permissions", *self.extra} - {ACL}
        if self.allow_other:
            words.add("allow_other")
        if self.read_only:
            words.add("ro")
        return words
