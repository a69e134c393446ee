"""One tree of files out of a default backend and others attached at prefixes.

backend.py       `CompositeBackend`, and `resolve` for factories of backends
route_table.py   the route of a path, and the prefixes in a directory
router.py        the agent face at each prefix, which also reports changes of backends without a change feed
search.py        `ls`, `grep` and `glob` over several backends
transfer.py      `move` from one backend into another
"""
