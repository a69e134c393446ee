"""The kernel's own limits for one mount, raised where we may: only root can, and the owner of a mount some of them.

Each is a file below /sys, named after the mount's device. What can't be raised stays as it is, and the mount works.
Switch: `kernel_limits`.
"""

from __future__ import annotations

import logging
import os
import subprocess

log = logging.getLogger(__name__)

READ_AHEAD_KIB = 1024
"""One request's worth: as much as the kernel asks for at once. A cold read takes half as long."""

MAX_BACKGROUND = 1024
"""Requests of the kernel's own that are under way at once, such as reads for its page cache. It allows 12 to a mount,
all routes together: 12 readers of a hung route would hold up all reading, and 64 of a slow one take turns."""

CONNECTIONS = "/sys/fs/fuse/connections"

THRESHOLD = "congestion_threshold"
"""From how many on it leaves out reading ahead."""

COMMAND_LIMIT_S = 10.0


def raise_limits(device: int) -> None:
    """Raise what can be raised for the mount on this device. May take some milliseconds."""
    number = f"{os.major(device)}:{os.minor(device)}"
    _set(f"/sys/class/bdi/{number}/read_ahead_kb", READ_AHEAD_KIB)
    connection = f"{CONNECTIONS}/{device if os.major(device) else os.minor(device)}"
    if os.path.isdir(connection):
        _set(f"{connection}/max_background", MAX_BACKGROUND)
        _set(f"{connection}/{THRESHOLD}", MAX_BACKGROUND)
    elif os.geteuid() == 0:
        _set_unseen(connection)


def _set(path: str, value: int) -> None:
    try:
        with open(path, "w") as setting:
            setting.write(str(value))
    except OSError as error:
        log.debug("%s stays as it is: %s", path, error)


def _set_unseen(connection: str) -> None:
    """Where nobody has mounted the file system of these files (a container): for a moment, out of sight of others."""
    write = " && ".join(f"echo {MAX_BACKGROUND} >{connection}/{name}" for name in ("max_background", THRESHOLD))
    command = ["unshare", "--mount", "--", "sh", "-c", f"mount -t fusectl fusectl {CONNECTIONS} && {write}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("the kernel's limit on reads for its page cache stays as it is: %s", error)
        return
    if done.returncode:
        log.debug("the kernel's limit on reads for its page cache stays as it is: %s", done.stderr.strip())
