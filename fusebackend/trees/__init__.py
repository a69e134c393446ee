"""Trees of a mount beside its main tree: snapshots, branches, their merges, restores, and differences between trees.

snapshots.py         `Snapshots`: taking, listing and deleting them, over all routes that keep any
automatic.py         `AutomaticSnapshots`: those that a mount takes by itself, and for how long they are kept
snapshot_trees.py    `SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`
composed.py          `ComposedTree`: volumes of several routes as one tree
branches.py          `Branches`: the branches of a mount
checkouts.py         `Checkouts`: branches in plain directories
branch_volume.py     `BranchVolume`: a branch as a volume: its changes above a lower tree
lower_tree.py        `LowerTree`: the tree below a branch; `BaseTree`: where it began with a state before the present
refs.py              the states that a REF of the command line names: a snapshot, a time, `main`
diff.py              the differences of two trees
diff_output.py       differences as a git patch, `--stat`, `--name-status`, JSON
earlier.py           `EarlierVolume`: a route as it was when a call began; the trees before and after a call
states.py            `States`: the trees of REFs in the server, and the differences of two
restore.py           `Restores`: files of another state put back into the main tree
merge/               the three-way merge of a branch into the main tree
"""
