"""`PostgresBackend`: a native volume in PostgreSQL that many hosts mount at once.

opening.py                from a URL to a volume; all other modules need psycopg
backend.py                the agent face
volume.py stored_tree.py  the kernel face, and its storage with the limits in bytes and files
transaction.py statements.py   one change, and the SQL
schema.py                 the tables
snapshots.py old_rows.py  snapshots, and the rows that they have and the volume has no more
known_inodes.py           rows, names and bytes that were read or committed, for what is asked next; what a change will
                          find, most likely: it is one round trip then
lease.py                  while there is no other host, these are answers
commit_log.py             rows of a host's history in the transactions of its changes
drafts.py                 files that are new and not closed yet, stored at their close
unsynced.py               what a crash of the server may take, until an `fsync`
host_session.py uses.py   this process among those that have the volume open, and the nodes it uses
feed.py                   changes of other hosts, and which of them have been read
search.py                 `grep` and `glob`, and their index
"""
