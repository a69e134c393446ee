"""What the kernel has in its caches, and how it is kept true.

timeouts.py        what the kernel may keep, and for how long
invalidation.py    it is told of changes by the other face and other hosts
hold_back.py       … after it has taken in what it asks
negative.py        names that are not there
dentries.py        names, where other hosts change them too
revalidation.py    … looked at again before an open
write_barrier.py   an agent's change waits for those who have just opened
range_order.py     overlapping reads and writes in the kernel's order
prefill.py         pages of small files, given at open
cached_readdir.py  listings that the kernel keeps
twins.py           a change through one tree, in the others
"""
