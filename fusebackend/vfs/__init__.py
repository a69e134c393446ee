"""The mounted tree: the kernel's requests, answered by the volumes of the routes. Nothing here knows FUSE or a backend.

mounted_tree.py    `FileSystem`: a method for each request
junctions.py       which volume a directory belongs to
trees.py           the trees beside the main one
inodes.py          inode numbers, and the kernel's references
inode_resolver.py  where a request happens
switches.py        which features there are, and how to turn one off
handles.py         open files and directories, and opening
listing.py         directories
xattrs.py          extended attributes
setid.py           set-ID bits go with a change
calls/             the way into a volume: threads, deadlines, circuit breaker
coherence/         what the kernel caches, a file for each race
watch/             changes, for those who watch
"""
