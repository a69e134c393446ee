"""Trees of one mount beside the main one, and the differences between them.

refs.py          what a REF of the command line names: a snapshot, a time, `main`
tree.py          `Tree`: a directory tree as the kernel shows it, reached by descriptors
diff.py          the differences of two trees
diff_output.py   differences as a git patch, `--stat`, `--name-status`, JSON
restore.py       files of one tree put back into another
"""
