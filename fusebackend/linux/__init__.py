"""Mounts as Linux reports them, and commands as processes. Nothing here knows a backend.

mount_table.py        the kernel's table of mounts; `MountError`
proc.py               what /proc says of processes, and the id of this boot
mount_point.py        conditions of a mount point
distribution.py       how this distribution installs what pip can't
holes.py              the holes of a file
unmount.py            ending a mount from outside
bind_mount.py         a directory at a second path
runtime_directory.py  the directory of this user's sockets, and names of a server's own files
service_manager.py    what a server tells systemd of itself
command.py            a command while it runs
"""
