"""The kernel's caches, and the rules that keep them valid: a file for each feature, and two for the caches.

The file of a feature opens with the race that it closes or the requests that it saves, its cost, and its switch
(`vfs/switches.py`).

entry_cache.py     entry and attribute timeouts, negative dentries; zero for an answer that a change overtook
page_cache.py      notices to the kernel, held back until it has applied an answer; pages that are kept over an open,
                   and writes past them

Rules, against races:

invalidation.py    notices of changes by the other face and other hosts
dentries.py        the kernel's dentries on routes that other hosts change
revalidation.py    … compared with the volume at open
write_barrier.py   an agent's edit waits for fresh opens
range_order.py     overlapping reads and writes keep their order
reread_pages.py    a write reaches pages that were read again before it arrived
append_end.py      an append goes to the real end of the file
capabilities.py    a write removes them
twins.py           changes through one tree, in the others

Optimisations:

prefill.py         pages of small files, pushed at open
cached_readdir.py  listings that the kernel keeps
pruning.py         inodes that the kernel drops
"""
