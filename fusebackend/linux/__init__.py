"""Mounts as Linux reports them, and commands as processes. Nothing here knows a backend.

mount_table.py        the kernel's table of mounts; `MountError`
mount_point.py        conditions of a mount point
open_files.py         files that processes have open for writing
unmount.py            ending a mount from outside
runtime_directory.py  the directory of this user's sockets, and names of a server's own files
command.py            a command while it runs
"""
