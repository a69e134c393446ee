"""POSIX rules and the agent face, for every native volume.

posix.py         `TreeVolume`: the POSIX rules
frozen.py        `FrozenTree`: a state that never changes again
storage.py       `Inode` and `Chunk`, as a volume has them in memory, and a cache of chunks
quota.py         limits, and what counts towards them
removal.py       deleting a tree, in portions
agent_face.py    `VolumeBackend`: the agent's verbs over a volume; `AgentVerbs`: what those over whole files share
walk.py          paths, and the files below a directory
search.py        `grep` and `glob`
contents.py      whole contents
placing.py       earlier states of files, put into any volume
trigram.py       entries of a trigram index
damage.py        rows that no volume writes
"""
