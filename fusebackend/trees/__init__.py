"""Trees of a mount beside its main tree: earlier states of all routes, and the differences between trees.

snapshots.py         `Snapshots`: taking, listing and deleting them, over all routes that keep any
automatic.py         `AutomaticSnapshots`: those that a mount takes by itself, and for how long they are kept
snapshot_trees.py    `SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`
refs.py              the states that a REF of the command line names: a snapshot, a time, `main`
tree.py              `Tree`: a directory tree as the kernel shows it, reached by descriptors
diff.py              the differences of two trees
diff_output.py       differences as a git patch, `--stat`, `--name-status`, JSON
restore.py           files of one tree put back into another
"""
