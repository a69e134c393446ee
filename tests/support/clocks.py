"""What the kernel's clock for files can do here."""

from __future__ import annotations

import os

MULTIGRAIN = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 13)
"""A file that was looked at since its last change gets a time finer than the tick (fs/inode.c)."""
