"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it. Nothing is changed by a check.

machine.py    `Finding`; /dev/fuse, libfuse, what the kernel and a container let a process have, programs, directories
routes.py     the backends of a configuration; the table of all checks
"""
