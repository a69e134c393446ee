"""`grep` and `glob` of a PostgreSQL volume, by an index of pg_trgm.

search.py   both, and reading the contents of many files with one query
query.py    the queries for files below a directory, or that may hold a pattern; each ended with its budget
index.py    the tables of the index, and the thread that brings it up to date
"""
