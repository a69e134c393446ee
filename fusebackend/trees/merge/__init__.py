"""The three-way merge of a branch into the main tree.

merges.py   `Merges`: the merges of a mount's branches, and their three trees: the branch's base, the branch, main
tree.py     `MergeTree`: a tree of routes that is compared for a merge
pairs.py    which file of a branch, and of main, is which file of the base
plan.py     the plan: steps and conflicts
run.py      `Merge`: makes the steps of a plan, and records them for the history; it can be resumed
"""
