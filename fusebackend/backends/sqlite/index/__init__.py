"""The trigram index of an SQLite volume.

indexer.py       brings it up to date, beside writers
walk.py          the files that may hold a pattern, by the index
check.py         does it know all that it has to?

`volumes/trigram.py` says what an entry is.
"""
