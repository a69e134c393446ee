"""Commands in a mount: `Shell` runs them in a sandbox with the mount as its root.

Every route is there at the absolute path that the file verbs use, and files that a command writes at `/` are in the
mount. `shell.py` lists what commands can see and do; the other modules are parts of it:

bubblewrap.py      the mounts of the sandbox, and bwrap's arguments
mountcheck.py      compares the mounts that bwrap has made with those it was asked for
system.py          the parts of this machine that the sandbox shows, and its own /etc and device nodes
seccomp.py         system calls that no namespace confines
cgroups.py         limits of memory and processes
usernamespace.py   limits of resources that the kernel counts by user
launch.py          one command from its start to the end of its last process
options.py         `[execute]` of a configuration
"""
