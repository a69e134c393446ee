"""A mount point before it is mounted on: its conditions, and an error of one line for each."""

from __future__ import annotations

import errno
import os
import shutil
import stat

from fusebackend.linux import mount_table as table
from fusebackend.linux import unmount
from fusebackend.linux.distribution import install
from fusebackend.linux.mount_table import MountError

FUSE_DEVICE = os.makedev(10, 229)
"""Its number on every Linux (Documentation/admin-guide/devices.txt)."""


def check_system(*, allow_other: bool = False) -> None:
    """Check that this process can mount anything.

    Raises:
        MountError: there is no /dev/fuse; no fusermount3 for a user other than root; or `allow_other` is not allowed.
    """
    if not os.path.exists("/dev/fuse"):
        raise MountError(
            errno.ENODEV,
            "there is no /dev/fuse: load the kernel module with 'modprobe fuse', or give the container the device "
            "(--device /dev/fuse --cap-add SYS_ADMIN)",
        )
    if not stat.S_ISCHR(os.stat("/dev/fuse").st_mode) or os.stat("/dev/fuse").st_rdev != FUSE_DEVICE:
        raise MountError(
            errno.ENODEV, "/dev/fuse is not the FUSE device; as root: rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229"
        )
    if os.geteuid() == 0:
        return
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise MountError(errno.EACCES, "/dev/fuse is not open to you; as root: chmod a+rw /dev/fuse")
    if shutil.which("fusermount3") is None:
        raise MountError(errno.ENOENT, f"fusermount3 is not installed: '{install('fusermount3')}', or mount as root")
    if allow_other and not user_allow_other():
        raise MountError(errno.EPERM, "allow_other needs root, or the line 'user_allow_other' in /etc/fuse.conf")


def user_allow_other() -> bool:
    """Return True if /etc/fuse.conf lets users have `allow_other`."""
    try:
        with open("/etc/fuse.conf", encoding="utf-8", errors="replace") as file:
            return any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def prepare(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """Check a mount point, and clear a dead mount of ours away.

    Returns:
        Its path, without symbolic links; and whether there was a dead mount.

    Raises:
        MountError: it is missing, not a directory, not empty, not ours to write, or mounted on already.
    """
    spelled = table.resolve(path)
    replaced = False
    # Several dead ones can lie on top of each other.
    while (entry := table.mount_at(spelled)) is not None and entry.is_ours:
        (found,) = table.probe(spelled)
        if found.state != "dead":
            raise MountError(errno.EBUSY, _taken(found))
        unmount.detach(spelled, lazy=True)
        replaced = True
    if entry is not None:
        raise MountError(errno.EBUSY, f"'{spelled}' is a mount point already ({entry.fstype} on it)")
    _check_directory(spelled)
    return spelled, replaced


def _taken(found: table.MountState) -> str:
    server = f" by process {found.pid}" if found.pid else ""
    if found.state == "hung":
        return (
            f"'{found.mountpoint}' is mounted already, but its server does not answer; "
            f"'fusebackend umount --lazy {found.mountpoint}' takes it away"
        )
    return f"'{found.mountpoint}' is mounted already{server}; 'fusebackend umount {found.mountpoint}' ends that"


def _check_directory(path: str) -> None:
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise MountError(errno.ENOTDIR, f"mount point '{path}' is not a directory")
        with os.scandir(path) as entries:
            if next(entries, None) is not None:
                raise MountError(errno.ENOTEMPTY, f"mount point '{path}' is not empty; mount on an empty directory")
    except MountError:
        raise
    except FileNotFoundError:
        raise MountError(errno.ENOENT, f"mount point '{path}' does not exist; make the directory first") from None
    except OSError as error:
        raise MountError(error.errno or errno.EIO, f"mount point '{path}': {error.strerror}") from None
    if os.geteuid() != 0 and not os.access(path, os.W_OK):  # fusermount3 refuses it with a message that says less
        raise MountError(errno.EACCES, f"mount point '{path}' is not writable for you; own it or mount as root")
