"""Reading objects in ranges.

ranged_reader.py  any part of one version of an object
parts.py          a range that is fetched once
read_ahead.py     how far to read ahead
fetchers.py       the threads that fetch
disk_cache.py     blocks kept on the local disk
"""
