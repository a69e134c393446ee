"""The kernel's caches, and the rules that keep them valid: a class for each feature.

A feature's docstring says which race it closes or which requests it saves, its cost, and its switch
(`vfs/switches.py`).

entry_cache.py     entry and attribute timeouts, negative dentries; zero for an answer that a change overtook
page_cache.py      notices to the kernel, held back until it has applied an answer; pages that are kept over an open,
                   small files that are pushed at open, and writes past the cache
invalidation.py    notices of changes by the other face and other hosts, and through other trees; inodes that the kernel
                   drops
dentries.py        the kernel's dentries on routes that other hosts change, compared with the volume at open
range_order.py     an append goes to the real end of the file; overlapping reads and writes keep their order; a write
                   reaches pages that were read again before it arrived

Others are where they are used: an edit waits for fresh opens (`vfs/handles.py`), listings that the kernel keeps
(`vfs/listing.py`), privileges that a write removes (`vfs/setid.py`).
"""
