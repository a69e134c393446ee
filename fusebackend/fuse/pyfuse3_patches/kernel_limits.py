"""The kernel's own limits for one mount, raised where we may: only root can, and the owner of a mount some of them.

Each is a file below /sys, named after the mount's device. A limit that can't be raised stays, and the mount works.
Switch: `kernel_limits`.
"""

from __future__ import annotations

import logging
import os
import subprocess

log = logging.getLogger(__name__)

READ_AHEAD_KIB = 256
"""Two requests are under way while a file is read, and the reader copies one while the next is answered. 64 MiB of
`memory:` take 0.10 s, of `sqlite:` 0.26 s; with Linux's 128 KiB 0.14 and 0.34 s, with 1 MiB 0.23 and 0.29 s."""

BLOCKING_READ_AHEAD_KIB = 1024
"""The same of a mount with a route that waits for a network: one request's worth, as few answers to wait for as can
be."""

MAX_BACKGROUND = 1024
"""Requests of the kernel's own that are under way at once, such as reads for its page cache. It allows 12 to a mount,
all routes together: 12 readers of a hung route would hold up all reading, and 64 of a slow one take turns. With 0.3 s
for each answer, 64 readers of 1 MiB each take 0.7 s instead of 13.6 s."""

CONNECTIONS = "/sys/fs/fuse/connections"

THRESHOLD = "congestion_threshold"
"""From how many on it leaves out reading ahead."""

COMMAND_LIMIT_S = 10.0


def raise_limits(device: int, read_ahead_kib: int) -> None:
    """Raise the limits of the mount on this device, as far as allowed. May take some milliseconds."""
    number = f"{os.major(device)}:{os.minor(device)}"
    _set(f"/sys/class/bdi/{number}/read_ahead_kb", read_ahead_kib)
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
    """Raise them where fusectl is not mounted (a container): in a mount namespace of its own, for a moment."""
    write = " && ".join(f"echo {MAX_BACKGROUND} >{connection}/{name}" for name in ("max_background", THRESHOLD))
    command = ["unshare", "--mount", "--", "sh", "-c", f"mount -t fusectl fusectl {CONNECTIONS} && {write}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", None) or error
        log.debug("the kernel's limit on reads for its page cache stays as it is: %s", why)
