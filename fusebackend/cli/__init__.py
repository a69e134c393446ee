"""The `fusebackend` command: a module for each subcommand, found by the table in `main`.

`serve` is the process behind a mount. The verbs of agents share `target` (which mount and which path a command line
means), `show` (what is printed) and `attributes` (of files, in words).
"""
