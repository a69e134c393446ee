"""One tree of files out of a default backend and others attached at prefixes.

backend.py       `CompositeBackend`
route_table.py   which route a path belongs to
router.py        an agent face at each prefix
attach.py        what becomes of a backend that is given
search.py        `ls`, `grep` and `glob` over several backends
transfer.py      `move` from one backend into another
notify.py        a backend without a change feed tells the mount of its changes
"""
