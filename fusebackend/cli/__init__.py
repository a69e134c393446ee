"""The `fusebackend` command: a module for each subcommand, or for several that are alike, found by the table in `main`.

main.py                       the group of commands; errors become a line and an exit status
mount.py serve.py umount.py   a mount, and `serve`: its plan, the process behind it and its start, its end
mount_helper.py               the same for mount(8) and umount(8), by /etc/fstab
doctor.py                     what a machine lacks for a mount
status.py backends.py check.py  the state of mounts and what is measured, the kinds of URLs, damage
files.py                      `ls`, `stat`, `read`, `write`, `edit`, `rm`, `mv`, `grep` and `glob`
watch.py                      changes
copies.py execute.py          `upload` and `download`; `exec` and `shell`
threads.py                    what LangGraph's checkpoints take, and how they are pruned
mcp.py                        a mount for MCP clients
branch.py                     branches, and their merges
view.py                       views: their rules; `approval`: changes that wait for one
states.py                     `snapshot`, `diff` and `restore`: earlier states of a mount
log.py undo.py                calls: `log`, `blame` and `undo`
space.py                      `df`, `prune` and `forget`: what is kept of the past
hook.py worktree.py           what coding agents tell of their calls; branches as their worktrees
target.py show.py progress.py  shared: mount and path of an argument, output, progress
"""
