"""`fusebackend doctor`: what this machine lacks for a mount, and how to mend it. Nothing is changed by a check.

finding.py       `Finding`: a verdict, why, and the mend; a check that fails is one, too
process.py       what the kernel says of this process, and trials in a child
fuse.py          /dev/fuse, libfuse, fusermount3, and whether the kernel lets this process mount
namespaces.py    what the kernel and a container let this process have: user namespaces, seccomp, propagation
commands.py      what commands of a mount need: bubblewrap, control groups; ripgrep and git
places.py        the directories of data, state and sockets; the locale
packages.py      Python packages of the extras
routes.py        the backends of a configuration
checks.py        the table of all checks
"""
