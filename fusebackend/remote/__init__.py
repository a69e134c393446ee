"""Files behind an API: one volume over `protocol.remote.Remote`, with buckets and agent backends as two remotes.

backend.py       `RemoteBackend`, the agent face of such a volume
volume.py        `RemoteVolume`, the kernel face; `ForeignVolume`, that of any agent backend
tree.py          names and nodes, over cached listings
entry.py         a file or directory, its states; a listing
files.py         handles, ranges, buffers
buffer.py        the bytes of a file while it is written
parallel.py      one request for each of many items, and threads that read ahead
ranges.py        reading in ranges, the blocks kept in memory, reading ahead
agent_remote.py  agent verbs of others as a `Remote`; the optional hooks of a backend
agent_verbs.py   `FileVerbs`: the agent's verbs over whole files, those of a store, a state or a sandbox
keyed.py         keys of others as file names; the tree that flat keys make
files_update.py  the files in a runtime's state
"""
