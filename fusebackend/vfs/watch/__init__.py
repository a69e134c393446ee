"""Changes of the mounted tree, for those who watch.

feed.py          `ChangeFeed`: every change, from either face
queue.py         `Watch`: the events for one watcher
async_watch.py   … as an async iterator
emitting.py      changes by the kernel
visibility.py    changes by volumes: which show, and where
node_paths.py    where the nodes are that the kernel knows
"""
