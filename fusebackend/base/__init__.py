"""Used by every other package: paths, errors, time, waiting. Nothing here knows a backend.

paths.py         agent paths: normalised at the door
relative_paths.py  paths in a tree, relative and of bytes
here.py          paths from a current directory that may have been removed
at_path.py       what is open, and the path that it was opened by
durable.py       files replaced so that a loss of power leaves them whole
globs.py         glob patterns
asked.py         the glob that a search over several backends was asked for
errors.py        errno to error code and back
sizes.py         sizes as people write them
settings.py      what a setting is, and tables of settings
batches.py       lists that stay below a size
recent.py        a dict of what was used last
acl.py           POSIX ACLs, and modes
json_text.py     any value as pretty JSON
lines.py         lines end at LF alone
shown.py         names as text for a wire or a terminal, and back
merge_lines.py   a three-way merge of text by lines
git_patch.py     the difference of two files, as `git apply` takes it
xdg.py           the user's directories for data, state and caches
extras.py        which extra brings which module
budget.py        how long a call may go on, and whether it was cancelled
context.py       context variables that are set for a block, descriptors that are open for one
deadline.py      calls that may never return
awaiting.py      a blocking verb, awaited under asyncio or trio
caller.py        the task that awaits
jitter.py        random numbers for the length of waits
waiting.py       calls that must not wait on this thread; places that are taken in turn
stamps.py        the time that files are stamped with
heap.py          freed memory goes back to the system
version.py       `__version__`
"""
