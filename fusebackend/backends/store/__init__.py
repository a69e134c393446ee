"""`StoreBackend`: the files in a namespace of a LangGraph store. `backend.py` says what it promises.

backend.py       the agent's verbs
tree.py names.py values.py     pure: paths to keys and back, which names keys have, values as files
items.py         one namespace of any store; sqlite_items.py, postgres_items.py, those two asked by SQL
postgres_database.py feed.py          connections to PostgreSQL, and what it tells of changes
namespaces.py    all namespaces of a store as one tree
source.py opening.py           from an object, a runtime or a URL to a store and a namespace
"""

from fusebackend.backends.store.backend import StoreBackend

__all__ = ["StoreBackend"]
