"""`grep` and `glob` of a PostgreSQL volume, by an index of pg_trgm.

search.py          both, over few large queries
queries.py         the queries, each ended when its budget is
tree_walk.py       files below a directory, many directories with one query
entry_walk.py      files that may hold a pattern, by the index
contents_ahead.py  contents, many files with one query
index_schema.py    the tables of the index
indexer.py         brings it up to date
"""
