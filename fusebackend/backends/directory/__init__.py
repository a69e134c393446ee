"""A directory of this machine as a backend: `dir:` and `shell:`.

backend.py       `FilesystemBackend`, by the paths that the seeds give it
local_shell.py   `LocalShellBackend`: the same, with `execute`
agent_face.py    the agent's verbs over the volume
volume.py        `DirectoryVolume`: the kernel face
nodes.py         node numbers, and where each was last seen
descriptors.py   where the nodes are, as descriptors
dirfd.py         one step at a time through a tree, never through a symbolic link
open_file.py     how one file of the system is open
local_tree.py    the files below a directory, for searches
ripgrep.py       ripgrep as a sieve before `grep`
"""
