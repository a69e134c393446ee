"""Trees of a mount beside its main tree: earlier states of all routes, and the differences between trees.

snapshots.py         `Snapshots`: taking, listing and deleting them, over all routes that keep any
automatic.py         `AutomaticSnapshots`: those that a mount takes by itself, and for how long they are kept
snapshot_trees.py    `SnapshotTrees`: the kernel face of `/.fusebackend/snapshots`
composed.py          `ComposedTree`: volumes of several routes as one tree
branches.py          `Branches`: the branches of a mount
branch_volume.py     `BranchVolume`: a branch as a volume: its changes above a lower tree
lower_tree.py        `LowerTree`: the tree below a branch
refs.py              the states that a REF of the command line names: a snapshot, a time, `main`
tree.py              `Tree`: a directory tree as the kernel shows it, reached by descriptors
diff.py              the differences of two trees
recorded.py          the trees before and after a call, from its records
diff_output.py       differences as a git patch, `--stat`, `--name-status`, JSON
recorded.py          the two trees of a call, before it and after it, from its records
restore.py           files of one tree put back into another
merge_trees.py       `MergeTree`: a tree of routes that is compared for a merge
merge_pairs.py       which file of a branch, and of main, is which file of the base
merge.py             the plan of a three-way merge: steps and conflicts
merge_branch.py      the trees of a branch's merge: its base, itself, and main
merge_run.py         `Merge`: makes the steps of a plan; it can be resumed
merge_records.py     records of what a merge changes, for the history
merges.py            `Merges`: the merges of a mount's branches
"""
