"""`StoreBackend`: the files in a namespace of a LangGraph store. `backend.py` has its promises.

backend.py                 `StoreBackend`, its verbs, its mount and its URLs
namespaces.py              one namespace or all as one tree; the keys of one, by `remote/keyed.py`
items.py values.py         one namespace as keys and values; values as files
searched_items.py sql_items.py   of any store, and of the two that are queried by SQL
sqlite_database.py postgres_database.py   the connections and the SQL of those two; what PostgreSQL announces
source.py                  from an object or a runtime to a store and a namespace
"""

from fusebackend.backends.store.backend import StoreBackend

__all__ = ["StoreBackend"]
