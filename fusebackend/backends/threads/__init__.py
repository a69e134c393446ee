"""A LangGraph checkpoint database as a tree: every thread, its files now, and its files at each checkpoint.

    /<thread>/head/…                                  the files now
    /<thread>/history/<time>-<step>-<source>/…        the files at each checkpoint
    /<thread>/messages.jsonl  /<thread>/state.json    the conversation, and the rest of the state
    /<thread>/subgraphs/<namespace>/…                 the same for each namespace of sub-graphs, where there are any

The tables of SqliteSaver and PostgresSaver are read directly: neither the agent's code nor LangGraph is needed, and
nothing from the database is called or imported.

- The files of a checkpoint are those that LangGraph's `get_state` finds when it is asked for that checkpoint, and
  `head` is what it finds when it is asked for none. `transcript.py` says what is in the two documents.
- Thread ids, namespaces and keys of files become names by the rule of `remote/keys.py`; a thread's id is also in the
  extended attribute `user.fusebackend.thread`, a checkpoint's in `user.fusebackend.checkpoint`, and the keys of files
  that are shown under another path are in `state.json`.
- A file bears the time that its record does, 1970 where it has none; directories bear that of their checkpoint. What
  did not change between checkpoints is the same inode, so `diff -r` reads only what differs.
- Where the files of a checkpoint can't be known (encrypted, pickled or damaged values, an unknown serialisation), its
  directory holds one file, `ERROR.txt`, that says why. A single record that is no file data is listed with size 0,
  can't be opened (EIO), and says why in `user.fusebackend.error`. A database that can't be read is EIO, and a line in
  the log.
- A running agent is followed: a new checkpoint is seen within a second, and told to watchers. The kernel caches what is
  in SQLite for an hour and is told of changes; PostgreSQL is believed for the route's TTL.

Nothing can be written (EROFS), unless `write="head"` is asked for: what is written below a thread's own `head` then
becomes a pending write, which keeps approvals intact and is refused while a run is active. `head.py` says what else is
refused, and `database/activity.py` what active means and what it can't see.

backend.py opening.py            the agent face; from a URL to it
volume.py writable.py head.py    the kernel face, and heads that can be written to
tree.py line_view.py folders.py nodes.py   the directories of threads, lines and checkpoints, and their nodes
lineage.py file_records.py transcript.py   the checkpoints of a line, versions of files, the two documents
difference.py search.py          what has changed meanwhile; `grep` and `glob`
database/                        the tables of LangGraph's savers
"""

from fusebackend.backends.threads.backend import ThreadsBackend

__all__ = ["ThreadsBackend"]
