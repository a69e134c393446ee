"""Files that survive a loss of power whole: the old one or the new one, and never a part or none."""

from __future__ import annotations

import functools
import os

from fusebackend.base.context import closing_fd


def replace_file(path: str, data: bytes, *, new: str = "", mode: int = 0o600) -> None:
    """Put a file with these bytes in the place of another one, or of none.

    Args:
        new: the name that the file has until it is whole, in the same directory; `PATH.new` by default. What a killed
            writer has left there is overwritten.
    """
    new = new or f"{path}.new"
    with open(new, "wb", opener=functools.partial(os.open, mode=mode)) as file:
        os.fchmod(file.fileno(), mode)  # the umask may have removed bits
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(new, path)


def put_in_place(new: str, path: str) -> None:
    """Rename a file that is synced over another one, or over none."""
    os.replace(new, path)
    sync_directory(os.path.dirname(path) or ".")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: that of a new file is not, after a sync of the file (fsync(2))."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)
