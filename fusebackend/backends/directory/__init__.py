"""A directory of this machine as a backend: `dir:` and `shell:`.

backend.py       `FilesystemBackend`: the agent's verbs, by the paths that the seeds give it; `LocalShellBackend`: with
                 `execute`
search.py        the files below a directory, and ripgrep, for `grep` and `glob`
volume.py        `DirectoryVolume`: the kernel face
nodes.py         node numbers, where each was last seen, and its descriptor
dirfd.py         descriptors: one step at a time through a tree, never through a symbolic link; open files
"""
