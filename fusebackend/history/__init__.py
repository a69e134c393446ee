"""The history of a mount: who changed what in which call, and the bytes that were replaced.

records.py      a call and its changes, as the history keeps them
requests.py     changes that wait for an approval, as the history keeps them
history_file.py `HistoryFile`: all of them, in an SQLite file of the server
masking.py      commands without their secrets; `LogOptions`
events.py       the table of events, which only grows, and its hash chain
images.py       `Images`: the bytes of files before a change
calls.py        `Calls`: the call that a change belongs to; `Processes`: the process that a FUSE request comes from
recorder.py     `Recorder`: records changes, those of the kernel by a listener at the door; `drop_unmade`: those that a
                killed server has not made
steps.py        `Steps`: records what a verb changes
blame.py        the call that left a line as it is
undo.py         `Undo`: takes calls back
overlaps.py     `overlapping`: which records of others are in the way of an undo
undo_plan.py    `UndoPlan`: the steps of an undo, and why one is refused; `PlannedTree`: a route's tree with changes
                in it that are not made
"""
