"""Trees of a mount beside its main tree: earlier states of all routes.

snapshots.py         `Snapshots`: taking, listing and deleting them, over all routes that keep any
snapshot_trees.py    `SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`
"""
