"""Whether this process can mount a FUSE file system."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable

from fusebackend.doctor.finding import Finding, error, ok, warning
from fusebackend.doctor.process import confined_by, in_child, is_no_new_privileges
from fusebackend.linux.distribution import install, install_everything
from fusebackend.linux.mount_point import FUSE_DEVICE, user_allow_other

DEVICE = "/dev/fuse"

INSTEAD = "or do without a mount: 'fusebackend serve'"

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 16384, 1 << 18
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2


def device() -> Iterable[Finding]:
    """/dev/fuse is there, is the device, and can be opened."""
    try:
        status = os.stat(DEVICE)
    except FileNotFoundError:
        mend = f"modprobe fuse; for a container: --device {DEVICE} --cap-add SYS_ADMIN; {INSTEAD}"
        return [error(DEVICE, "it is not there", mend)]
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != FUSE_DEVICE:
        return [error(DEVICE, "it is not the FUSE device", f"rm {DEVICE} && mknod -m 666 {DEVICE} c 10 229, as root")]
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError as failure:
        if failure.errno == errno.EACCES and not os.access(DEVICE, os.R_OK | os.W_OK):
            return [error(DEVICE, "it is not open to this user", f"chmod a+rw {DEVICE}, as root")]
        why = "it can't be opened: the container's device rules, or a mount with nodev, forbid it"
        return [error(DEVICE, why, f"--device {DEVICE} for the container; {INSTEAD}")]
    except OSError as failure:
        return [error(DEVICE, f"it can't be opened: {failure.strerror}", f"modprobe fuse; {INSTEAD}")]
    return [ok(DEVICE, "can be opened")]


def library() -> Iterable[Finding]:
    """pyfuse3 can be imported, and with it libfuse3."""
    try:
        importlib.import_module("pyfuse3")
    except ImportError as failure:
        is_compiled = "libfuse" in str(failure)
        mend = install("libfuse3") if is_compiled else f"{install_everything()}; then pip install pyfuse3"
        return [error("libfuse3", f"pyfuse3 can't be imported: {failure}", f"{mend}; {INSTEAD}")]
    return [ok("libfuse3", "pyfuse3 can be imported")]


def fusermount() -> Iterable[Finding]:
    """fusermount3 is there for users other than root, and has their rights."""
    what, program = "fusermount3", shutil.which("fusermount3")
    is_root = os.geteuid() == 0
    if program is None:
        why = "it is not installed" + (": root mounts without it" if is_root else ", and only root mounts without it")
        return [(warning if is_root else error)(what, why, install("fusermount3"))]
    status = os.stat(program)
    if not is_root and not (status.st_mode & stat.S_ISUID and status.st_uid == 0):
        return [error(what, f"{program} is not setuid root", f"chown root {program} && chmod 4755 {program}, as root")]
    if not is_root and is_no_new_privileges():
        why = "this process and its children gain no privileges (no_new_privs), so its setuid bit has no effect"
        return [error(what, why, "start without --security-opt no-new-privileges, or NoNewPrivileges=yes")]
    return [ok(what, program)]


def allow_other() -> Iterable[Finding]:
    """Other users can be let in."""
    what = "allow_other"
    if os.geteuid() == 0 or user_allow_other():
        return [ok(what, "other users can be let in")]
    mend = "echo user_allow_other >> /etc/fuse.conf, as root, if others are to be let in"
    return [warning(what, "/etc/fuse.conf has no line 'user_allow_other': only this user sees a mount", mend)]


def mounting() -> Iterable[Finding]:
    """The kernel lets root mount: tried in a mount namespace that ends at once."""
    what = "mount(2)"
    if os.geteuid() != 0:
        return [ok(what, "left to fusermount3")]
    if not os.path.exists(DEVICE):
        return []
    with tempfile.TemporaryDirectory(prefix="fusebackend-doctor-") as directory:
        number = in_child(lambda: _try_mount(directory))
    if number == 0:
        return [ok(what, "a FUSE file system can be mounted")]
    profile = confined_by()
    because = f" (AppArmor profile '{profile}')" if profile else ""
    mend = "--cap-add SYS_ADMIN" + (" --security-opt apparmor=unconfined" if profile else "")
    why = f"the kernel refuses: {os.strerror(number)}{because}"
    return [error(what, why, f"for a container: {mend}; {INSTEAD}")]


def _try_mount(directory: str) -> int:
    """Mount in a namespace of this process's own; returns an error number, or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return ctypes.get_errno()
    is_private = libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) == 0
    if not is_private and ctypes.get_errno() != errno.EINVAL:  # EINVAL: '/' is no mount point, in a plain chroot
        return ctypes.get_errno()
    options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}".encode()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    if libc.mount(b"fusebackend-doctor", os.fsencode(directory), b"fuse", flags, options) != 0:
        return ctypes.get_errno()
    if not is_private:  # other namespaces may see the mount, and its end
        libc.umount2(os.fsencode(directory), _MNT_DETACH)
    return 0
