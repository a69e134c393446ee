"""A whole POSIX volume in one SQLite file: `sqlite:`, the embedded default.

backend.py       `SqliteBackend`, and its volume
schema.py        the tables of the file, and how it is opened
stored_tree.py   the dirty buffer, the caches, and reading from the file
sync_log.py      the file beside it that makes small syncs durable, and is applied after a crash
old_rows.py      the rows that snapshots need: kept, read, freed
snapshots.py     snapshots, each a read-only volume
flusher.py       the thread that writes changes to the file, and has the background work done
index.py         the trigram index for `grep`
check.py         finds problems in a file, and repairs them
"""
