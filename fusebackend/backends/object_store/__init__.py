"""Plain objects as files: S3, Google Cloud Storage, Azure.

backend.py       `ObjectStoreBackend`, `S3Backend`: the agent face
opening.py       from a URL to a store
volume.py        `ObjectStoreVolume`: the kernel face
tree.py          names and nodes, over listings that grow old
entry.py         a file or directory that was shown to somebody
files.py         contents: read in ranges, written to a buffer
metadata.py      modes, owners and times as object metadata
looks.py         what is asked of the store about single objects
put.py           the buffer, and how it becomes an object
conflicts.py     on which condition, and what a conflict is
rename.py        copy and deletion, with a record in the journal
journal.py       renames under way, as objects
gate.py          many may pass, or one alone
bucket/          requests to the store
ranged_reader.py reading in ranges, and the blocks kept in memory
read_ahead.py    how far to read ahead, and the threads for it
"""
