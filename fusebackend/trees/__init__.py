"""Trees of a mount beside its main tree: earlier states of all routes.

snapshots.py         `Snapshots`: taking, listing and deleting them, over all routes that keep any
automatic.py         `AutomaticSnapshots`: those that a mount takes by itself, and for how long they are kept
snapshot_trees.py    `SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`
"""
