"""Mounts as Linux reports them, and commands as processes. Nothing here knows a backend.

mount_table.py        the kernel's table of mounts
mount_point.py        what must be true before it is mounted on
unmount.py            ending a mount from outside
mount_error.py        `MountError`
runtime_directory.py  the directory of this user's sockets
command.py            a command while it runs
"""
