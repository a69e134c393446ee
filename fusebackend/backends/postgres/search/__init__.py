"""`grep` and `glob` of a PostgreSQL volume, by an index of pg_trgm.

query.py       the queries for files below a directory, or that may hold a pattern; each ended with its budget
read_ahead.py  reading the contents of many files with one query
index.py       the tables of the index, and what brings it up to date
"""
