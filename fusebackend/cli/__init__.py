"""The `fusebackend` command: a module for each subcommand, found by the table in `main`.

main.py                                         the group of commands; errors become a line and an exit status
mount.py start.py serve.py umount.py            a mount: its plan, its start, the process behind it, its end
mount_helper.py                                 the same for mount(8) and umount(8), by /etc/fstab
doctor.py                                       what a machine lacks for a mount
unmounted.py                                    the command `serve`: the same without a mount
status.py metrics.py backends.py check.py       the state of mounts, what is measured, the kinds of URLs, damage
ls.py stat.py read.py search.py watch.py        reading; `search.py` has `grep` and `glob`
write.py edit.py mv.py rm.py                    changing
upload.py download.py execute.py                copies, and commands in the mount
threads.py                                      what LangGraph's checkpoints take, and how they are pruned
mcp.py                                          a mount for MCP clients
branch.py branch_merge.py shell.py              branches, and their merges; a shell in one
worktree.py                                     branches as worktrees of a coding agent
view.py approval.py                             views: their rules; changes that wait for an approval
snapshot.py diff.py restore.py                  earlier states of a mount
log.py blame.py undo.py hook.py space.py        calls; what coding agents tell of them; `space.py` has `df` and `prune`
forget.py                                       contents that leave everything kept
target.py show.py progress.py                   shared: mount and path of an argument, output, progress
"""
