"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it. Nothing is changed by a check.

finding.py    `Finding`: a verdict, why, and the mend; what a check asks the kernel, and trials in a child
machine.py    /dev/fuse, libfuse, what the kernel and a container let a process have, programs, directories, packages
routes.py     the backends of a configuration; the table of all checks
"""
