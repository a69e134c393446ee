"""What the kernel has in its caches, and how it is kept true: a file for each feature.

Each file opens with the race that it closes or what it saves, what it costs, and its switch (`vfs/switches.py`).

kernel_cache.py    what the kernel can be told
timeouts.py        what it may keep, and for how long

Rules, against races:

invalidation.py    it is told of changes by the other face and other hosts
overtaken.py       an answer that a change has overtaken is not believed
hold_back.py       it is told after it has taken in what it asks
page_versions.py   its pages are kept over an open while the file is the same
dentries.py        the names that it has, where other hosts change them too
revalidation.py    … looked at again before an open
write_barrier.py   an agent's change waits for those who have just opened
range_order.py     overlapping reads and writes in its order
append_end.py      an append goes to the end, wherever it thinks that is
capabilities.py    a write takes them
twins.py           a change through one tree, in the others

Optimisations:

negative.py        names that are not there (and a rule)
prefill.py         pages of small files, given at open
cached_readdir.py  listings that it keeps
direct_writes.py   writes that pass its page cache by
"""
