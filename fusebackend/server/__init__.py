"""A running mount: `mount()`, its parts and how they are put together, its agent face, and where commands run.

api.py        `fusebackend.mount()`
in_process.py  a mount of this process
assemble.py   the parts of a mount, made from its settings and put together, from its first request to its last; what
              is in the place of the kernel where nothing is mounted
mounted.py    its agent face, also through a view
recording.py  the history of its calls: recorders of kernel and verbs, and retention
history.py    its calls: the log, what a call did, undo
moves.py      what interrupted moves between routes have left
forget.py     contents that leave everything kept of the past
threads.py    the space of checkpoint databases: weighed, pruned
metrics.py    what Prometheus can know of it
approvals.py  changes that wait for an approval: what a verb asks for, the decisions, and how it is made then
rules.py      the rules of its routes, its views, and their mount points
trees.py      the trees directory: its files, its name, its agent face; the log as files in it
guest.py      commands in a default backend that runs them itself; the routes in a container of this machine, as bind
              mounts
carrying.py   the routes in another sandbox: their files are carried there and back
"""
