"""What the kernel and a container let this process have."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable

from fusebackend.doctor.finding import Finding, ok, warning
from fusebackend.doctor.process import confined_by, in_child, status_of_self
from fusebackend.linux import mount_table as table

_CLONE_NEWUSER = 0x10000000

_SETTINGS = (
    ("user/max_user_namespaces", 10000),
    ("kernel/unprivileged_userns_clone", 1),
    ("kernel/apparmor_restrict_unprivileged_userns", 0),
)
"""Below /proc/sys: a setting, and a value that does not forbid user namespaces. It is forbidden by 0 in the first two,
by 1 in the last."""


def user_namespaces() -> Iterable[Finding]:
    """A process may make a user namespace: what confines commands of users other than root needs one."""
    what = "user namespaces"
    number = in_child(_try_namespace)
    forbids = [_sysctl(name, value) for name, value in _SETTINGS if _setting(name) == (not value)]
    if number == 0 and (os.geteuid() == 0 or not forbids):
        return [ok(what, "can be made")]
    why = f"none can be made: {os.strerror(number)}" if number else "one has no rights here"
    mend = "; ".join(forbids) + ", as root" if forbids else "start the container with another seccomp profile"
    return [warning(what, f"{why}: no sandbox for commands, and no 'shell --branch', but as root", mend)]


def _try_namespace() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(_CLONE_NEWUSER) != 0 else 0


def _setting(name: str) -> bool | None:
    """Return whether a setting is on; None without it."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/{name}", encoding="ascii") as file:
        return int(file.read()) != 0
    return None


def _sysctl(name: str, value: int) -> str:
    return f"sysctl -w {name.replace('/', '.')}={value}"


def confinement() -> Iterable[Finding]:
    """AppArmor and seccomp, which most containers have."""
    profile, seccomp = confined_by(), status_of_self().get("Seccomp")
    if profile is None:
        yield ok("AppArmor", "no profile confines this process")
    else:
        yield warning(
            "AppArmor",
            f"profile '{profile}' confines this process, and those of containers refuse mounts",
            "--security-opt apparmor=unconfined for the container, if mounting is refused",
        )
    if seccomp in (None, "0"):
        yield ok("seccomp", "no filter confines this process")
    else:
        yield warning(
            "seccomp",
            "a filter confines this process, and that of a container refuses mounts without CAP_SYS_ADMIN",
            "--cap-add SYS_ADMIN for the container, if mounting is refused",
        )


def propagation(mountpoint: str | None) -> Iterable[Finding]:
    """Whether a mount made here is seen in other mount namespaces: on the host of a container, and the reverse."""
    path = table.resolve(mountpoint or "/")
    holding = [each for each in table.mounts() if _holds(each.mountpoint, path)]
    if not holding:  # in a plain chroot, whose root directory is no mount
        why = f"no mount that this process sees holds '{path}': its root directory is not a mount"
        return [warning("propagation", why, "bind the root directory onto itself before chroot, or use a container")]
    inner = max(holding, key=lambda each: len(each.mountpoint))
    if inner.is_shared:
        return [ok("propagation", f"'{inner.mountpoint}' is shared: mounts below it are seen in other namespaces")]
    bound = "DIR" if inner.mountpoint == "/" else inner.mountpoint
    mend = f"mount --make-rshared {inner.mountpoint}; for a container: -v HOST_DIR:{bound}:rshared"
    why = f"'{inner.mountpoint}' is not shared: mounts below it are seen in this mount namespace alone"
    return [warning("propagation", why, f"{mend}, if others are to see them")]


def _holds(mountpoint: str, path: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")
