"""The kernel's caches, and the rules that keep them valid: a file for each feature.

The file of a feature opens with the race that it closes or the requests that it saves, its cost, and its switch
(`vfs/switches.py`).

kernel_cache.py    notices to the kernel
timeouts.py        entry and attribute timeouts

Rules, against races:

invalidation.py    notices of changes by the other face and other hosts
overtaken.py       timeout zero for an answer that a change may have overtaken
hold_back.py       notices wait until the kernel has applied an answer
page_versions.py   pages are kept across opens of one version
dentries.py        the kernel's dentries on routes that other hosts change
revalidation.py    … compared with the volume at open
write_barrier.py   an agent's edit waits for fresh opens
range_order.py     overlapping reads and writes keep their order
reread_pages.py    a write reaches pages that were read again before it arrived
append_end.py      an append goes to the real end of the file
capabilities.py    a write removes them
twins.py           changes through one tree, in the others

Optimisations:

negative.py        negative dentries (and a rule)
prefill.py         pages of small files, pushed at open
cached_readdir.py  listings that the kernel keeps
direct_writes.py   writes past the page cache (and a rule)
pruning.py         inodes that the kernel drops
"""
