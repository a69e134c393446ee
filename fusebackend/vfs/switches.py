"""Which features a mounted tree has: the one place where one is turned off.

The docstring of each feature's class names its switch. There are two kinds:

- A *coherence rule* closes a race with the kernel or with another writer. Its switch is for tests only: each rule has
  a test that fails without it.
- An *optimisation* saves requests and has no other effect. The environment variable `FUSEBACKEND_OFF` of a server turns
  some off, which is how one is measured: `FUSEBACKEND_OFF=prefill,cached_readdir scripts/bench --quick`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "FUSEBACKEND_OFF"


@dataclass(frozen=True)
class Switches:
    """See the module's docstring. The classes are in `coherence/` and where they are used."""

    # -- coherence rules -----------------------------------------------------------------------------------------

    invalidation: bool = True
    overtaken: bool = True
    unordered_replies: bool = True
    notify_again: bool = True
    """In `fuse/notifier.py`."""
    hold_back: bool = True
    revalidation: bool = True
    page_versions: bool = True
    absent_names: bool = True
    write_barrier: bool = True
    range_order: bool = True
    reread_pages: bool = True
    append_end: bool = True
    direct_appends: bool = True
    o_direct: bool = True
    late_forget: bool = True
    """In `vfs/inode_resolver.py`."""
    crossed_renames: bool = True
    """In `vfs/watch/node_paths.py`."""
    twins: bool = True
    set_id: bool = True
    """In `vfs/setid.py`, as the following."""
    capabilities: bool = True

    # -- optimisations -------------------------------------------------------------------------------------------

    negative_dentries: bool = True
    prefill: bool = True
    cached_readdir: bool = True
    direct_writes: bool = True
    pruning: bool = True
    init_flags: bool = True
    """In `fuse/pyfuse3_patches/`, as the following."""
    eager_loop: bool = True
    kernel_limits: bool = True


PATCHES = ("init_flags", "eager_loop", "kernel_limits")
"""Those in `fuse/pyfuse3_patches/`. `eager_loop` installs the others: without it `init_flags` and `cached_readdir` are
off, too."""

OPTIMISATIONS = ("negative_dentries", "prefill", "cached_readdir", "direct_writes", "pruning", *PATCHES)

DEFAULT = Switches()
"""Of a tree for which nothing else is said."""


def from_environment(environment: Mapping[str, str] = os.environ) -> Switches:
    """All features but the optimisations that `FUSEBACKEND_OFF` names, separated by commas.

    Raises:
        ValueError: it names something else.
    """
    off = [name.strip() for name in environment.get(VARIABLE, "").split(",") if name.strip()]
    wrong = [name for name in off if name not in OPTIMISATIONS]
    if wrong:
        raise ValueError(f"{VARIABLE}: '{wrong[0]}' is no optimisation: {', '.join(OPTIMISATIONS)}")
    return Switches(**dict.fromkeys(off, False))
