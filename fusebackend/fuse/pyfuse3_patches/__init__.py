"""Features that libfuse and pyfuse3 lack, each in a file of its own.

README.md beside this file says for each what it works around, from which version it can go, and how to turn it off.

diversion.py       libfuse is diverted for a moment: the door of the next two
init_flags.py      FUSE_INIT: a capability that libfuse 3.14 does not know
cached_opendir.py  OPENDIR: the kernel may keep the listing
prune_notice.py    a notice that drops inodes
eager_loop.py      the next request, with fewer trips through the scheduler
kernel_limits.py   the kernel's limits for one mount, raised
cpu_latency.py     idle processors of a virtual machine stay awake
"""
