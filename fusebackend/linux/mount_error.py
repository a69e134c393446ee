"""`MountError`: why something can't be mounted or unmounted."""

from __future__ import annotations


class MountError(OSError):
    """The mount can't be made, or can't be ended. `str` of it is one line for the user; `errno` is set."""

    def __str__(self) -> str:
        return str(self.args[1]) if len(self.args) > 1 else super().__str__()
