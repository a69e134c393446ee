"""Both faces of a backend, and the records that cross them. The only behaviour are defaults: verbs under their older
names, `a…` forms of verbs, the text that `str(ReadResult)` shows, and the change feed of a volume.

agent.py         the agent face, `BackendProtocol`: a path in, a record out, never an exception for a bad path
records.py       its records
actors.py        who makes a change, and who acts in a block of code
verbs.py         its verbs as a table: the record, errors and kind of each
versions.py      versions of files, and changes on condition of one
served.py        the verbs of a mount, declared once, as a table for every door to them
branch.py        a branch for the length of a block, as a backend
awaited.py       their `a…` forms, for editors and mypy
volume.py        the kernel face, `Volume`: nodes and names in, values out, `OSError` with an errno; its change feed
snapshots.py     volumes that keep earlier states of themselves
commit_log.py    what a change adds to the log, in its transaction
remote.py        files behind an API, `Remote`: list, head, read, put, delete, copy
events.py        changes, for caches and watchers
scheme.py        URL schemes of backends
registered.py    `isinstance` for deepagents' classes, and what its tools ask

Each face is derived from the other once: `volumes/agent_face.py` gives every volume an agent face, and
`remote/volume.py` gives every agent face a volume.
"""

# Each module lists its names in `__all__`, and nowhere else.
from fusebackend.protocol.actors import *  # noqa: F403
from fusebackend.protocol.agent import *  # noqa: F403
from fusebackend.protocol.commit_log import *  # noqa: F403
from fusebackend.protocol.events import *  # noqa: F403
from fusebackend.protocol.records import *  # noqa: F403
from fusebackend.protocol.served import *  # noqa: F403
from fusebackend.protocol.snapshots import *  # noqa: F403
from fusebackend.protocol.verbs import *  # noqa: F403
from fusebackend.protocol.versions import *  # noqa: F403
from fusebackend.protocol.volume import *  # noqa: F403
