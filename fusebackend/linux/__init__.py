"""Mounts as Linux reports them, and commands as processes. Nothing here knows a backend.

mount_table.py        the kernel's table of mounts; `MountError`
mount_point.py        conditions of a mount point
distribution.py       how this distribution installs what pip can't
open_files.py         files that processes have open for writing
holes.py              the holes of a file
unmount.py            ending a mount from outside
unmount_watch.py      a mount that is taken away from outside
bind_mount.py         a directory at a second path
private_bind.py       a program for which a directory is seen at another's path
runtime_directory.py  the directory of this user's sockets, and names of a server's own files
command.py            a command while it runs
"""
