"""A whole POSIX volume in one SQLite file: `sqlite:`, the embedded default.

backend.py       `SqliteBackend`, and its volume
schema.py        the tables of the file, and how it is opened
stored_tree.py   what the volume holds: changed in memory, cached, or in the file
dirty.py         the changes that the file does not have yet
flusher.py       the thread that writes them to it
index/           the trigram index for `grep`
check.py         is a file sound?
repair.py        mending one that is not
"""
