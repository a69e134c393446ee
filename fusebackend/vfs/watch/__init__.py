"""Changes of the mounted tree, for watchers.

feed.py          `ChangeFeed`: every change, from either face, in paths of the mount; `Watch`: those for one watcher
async_watch.py   … as an async iterator
node_paths.py    `NodePaths`: the paths of nodes that the kernel knows
"""
