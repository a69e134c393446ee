"""`MountOptions`: how to mount. No pyfuse3 here: a composite that is served without a mount has them, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebackend.linux.mount_table import SUBTYPE


@dataclass(frozen=True)
class MountOptions:
    """How to mount.

    `allow_other` lets other users in (modes still apply); `may_keep_awake` lets processors idle without sleep during
    bursts (`pyfuse3_patches/cpu_latency.py`); `extra` are libfuse's own `-o` words; `description` is added to `status`,
    route URLs under `"urls"` by prefix.
    """

    allow_other: bool = False
    read_only: bool = False
    may_keep_awake: bool = False
    extra: tuple[str, ...] = ()
    description: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> set[str]:
        words = {"fsname=fusebackend", f"subtype={SUBTYPE}", "default_permissions", *self.extra}
        if self.allow_other:
            words.add("allow_other")
        if self.read_only:
            words.add("ro")
        return words
