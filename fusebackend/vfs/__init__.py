"""The mounted tree: the kernel's requests, answered by the volumes of the routes. Nothing here knows FUSE or a backend.

mounted_tree.py    `FileSystem`: a method for each request
door.py            the way of every change by the kernel, and its listeners
junctions.py       the routes of each tree, and the directories between them
options.py         the name of the trees directory, and whether it is listed; how long a route is waited for
pseudo_files.py    computed files in it
inodes.py          inode numbers, and the kernel's references
inode_resolver.py  inode → route and node; entries for the kernel
switches.py        a switch for each feature
handles.py         open files and directories, and opening; an agent's edit waits for fresh opens
listing.py         directories, and listings that the kernel keeps
xattrs.py          extended attributes
setid.py           a change clears set-ID bits and capabilities
calls/             calls into a volume: threads, deadlines, circuit breaker
coherence/         the kernel's caches, a class for each race
watch/             changes, for watchers
"""
