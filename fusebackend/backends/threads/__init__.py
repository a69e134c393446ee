"""A LangGraph checkpoint database as a tree: every thread, its files now, and its files at each checkpoint.

    /<thread>/head/…                                  the files now
    /<thread>/history/<time>-<step>-<node>/…          the files at each checkpoint; its state and messages beside it
    /<thread>/changes/<time>-<step>-<node>.patch      a git patch for each checkpoint that changed files
    /<thread>/messages/0001-human.md …                each message
    /<thread>/messages.jsonl  /<thread>/state.json    the conversation, and the rest of the state
    /<thread>/README.md  transcript.md  checkpoints.tsv  space.tsv      for people
    /<thread>/subgraphs/<namespace>/…                 the same for each namespace of sub-graphs, where there are any
    /@latest  /@by-time/<created>-<title>             links to threads, found when named

The tables of SqliteSaver and PostgresSaver are read directly: neither the agent's code nor LangGraph is needed, and
nothing from the database is called or imported.

- The files of a checkpoint are those of LangGraph's `get_state` for it, and `head` has those of `get_state` without a
  checkpoint. `documents.py` describes the two documents.
- Thread ids, namespaces and keys of files become names by the rule of `remote/keyed.py`; a thread's id is also in the
  extended attribute `user.fusebackend.thread`, a checkpoint's in `user.fusebackend.checkpoint`, and the keys of files
  that are shown under another path are in `state.json`.
- A file has the time of its record, or 1970; a directory that of its checkpoint. A file that did not change between
  checkpoints is the same inode, so `diff -r` reads only the differing ones.
- Where the files of a checkpoint can't be read (encrypted, pickled or damaged values, an unknown serialisation), its
  directory has one file, `ERROR.txt`, with the reason. A single record that is no file data is listed with size 0,
  can't be opened (EIO), and has the reason in `user.fusebackend.error`. A database that can't be read is EIO, and a
  line in the log.
- A running agent is followed: a new checkpoint appears within a second, and watchers are notified. The kernel caches
  the contents of SQLite for an hour and is notified of changes, those of PostgreSQL for the route's TTL.

Nothing can be written (EROFS) without `write="head"`: with it, a write below a thread's own `head` becomes a pending
write, which keeps approvals intact and is refused while a run is active. `head.py` lists the other refusals, and
`database/activity.py` defines active runs.

backend.py          the agent face, `grep` and `glob`; from a URL to it
volume.py head.py   the kernel face, and heads that can be written to
tree.py line.py     the directories of threads; what is in the directory of a line, and its README.md, transcript.md,
                    checkpoints.tsv, space.tsv
nodes.py            nodes, versions of files, and changes of them
computed.py         nodes that are made when somebody looks
prune.py            which checkpoints may go, and their deletion
lineage.py          the checkpoints of a line, and their files
index.py            names, sizes and times of what is computed from a line, and of its messages; patches; their cache
documents.py        messages.jsonl and state.json
conversation.py     messages as Markdown and files
database/           the tables of LangGraph's savers; values, also as JSON, however deep
"""

from fusebackend.backends.threads.backend import ThreadsBackend

__all__ = ["ThreadsBackend"]
