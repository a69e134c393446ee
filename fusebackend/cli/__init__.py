"""The `fusebackend` command: a module for each subcommand, or for several that are alike, found by the table in `main`.

main.py                                         the group of commands; errors become a line and an exit status
mount.py serve.py umount.py                     a mount: its plan, the process behind it and its start, its end
mount_helper.py                                 the same for mount(8) and umount(8), by /etc/fstab
doctor.py                                       what a machine lacks for a mount
unmounted.py                                    the command `serve`: the same without a mount
status.py backends.py check.py                  the state of mounts and what is measured, the kinds of URLs, damage
files.py                                        `ls`, `stat`, `read`, `write`, `edit`, `rm` and `mv`
search.py watch.py                              `grep` and `glob`; changes
copies.py execute.py                            `upload` and `download`; `exec` and `shell`
threads.py                                      what LangGraph's checkpoints take, and how they are pruned
mcp.py                                          a mount for MCP clients
branch.py                                       branches, and their merges
worktree.py                                     branches as worktrees of a coding agent
view.py approval.py                             views: their rules; changes that wait for an approval
snapshot.py diff.py restore.py                  earlier states of a mount
log.py blame.py undo.py hook.py space.py        calls; what coding agents tell of them; `space.py` has `df` and `prune`
forget.py                                       contents that leave everything kept
target.py show.py progress.py                   shared: mount and path of an argument, output, progress
"""
