"""Entry and attribute timeouts: how long the kernel may cache names, attributes and pages.

The kernel's dentry, attribute and page caches are the performance plan. A volume whose every change passes through this
process or arrives by its feed is cached for an hour, with active invalidation; absence is cached as well. A volume that
other hosts change too is cached the same way while its feed works, and opened as in `revalidation.py`; absence is not
cached, for a new name is worth a question. On a volume that others may write to without a feed, everything expires
after the route's TTL, and pages are kept across opens only while the file's size and times are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusebackend.protocol import Attr, Features

COHERENT_TIMEOUT_S = 3600.0
"""Entry and attribute timeout where invalidation is active. Finite, so that a missed one heals some day."""

ENDLESS_TIMEOUT_S = 10 * 365 * 86_400.0
"""Entry and attribute timeout of a directory that is the server's, and never changes."""

SHARED_DIRECTORY_TIMEOUT_S = 60.0
"""Entry timeout of the directories of a shared volume: the way to files leads through them, and while there is no feed
their names can't be taken back. A lookup in a minute costs nothing."""


@dataclass(frozen=True)
class CachePolicy:
    """Timeouts of one route, in seconds."""

    timeout_s: float
    coherent: bool

    @classmethod
    def of(cls, features: Features, ttl_s: float) -> CachePolicy:
        if features.change_feed:
            return cls(COHERENT_TIMEOUT_S, True)
        return cls(ttl_s, False)

    def version(self, attr: Attr) -> object:
        """Return the version to compare at open: pages stay in the kernel's cache while it is the same."""
        return True if self.coherent else attr.fingerprint

    def timeout(self, attr: Attr) -> float:
        """Return the entry timeout of a shared volume, in seconds."""
        return min(self.timeout_s, SHARED_DIRECTORY_TIMEOUT_S) if attr.is_dir else self.timeout_s
