"""`fusebackend restore`: files put back as they were in another state of the mount."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from fusebackend.cli import snapshot, states, target
from fusebackend.cli.show import Complaints, Failed, Output, note
from fusebackend.cli.states import States
from fusebackend.cli.target import complete_path, mount_option
from fusebackend.linux.open_files import writers
from fusebackend.trees.refs import Ref
from fusebackend.trees.restore import Restore, trees
from fusebackend.trees.tree import Tree, join, split


@click.command()
@click.argument("paths", nargs=-1, required=True, shell_complete=complete_path, metavar="PATH...")
@click.option("--from", "ref", required=True, shell_complete=snapshot.complete_name, metavar="REF", help="The state.")
@click.option("--to", "destination", shell_complete=complete_path, metavar="PATH", help="Restore to here instead.")
@click.option("-n", "--dry-run", "only_print", is_flag=True, help="Change nothing; print what would be done.")
@click.option("--force", is_flag=True, help="Also files that are open for writing.")
@mount_option
def restore(
    paths: Sequence[str], ref: str, destination: str | None, only_print: bool, force: bool, mount: str | None
) -> None:
    """Put files, directories and links back as they were, with all attributes; owners only by root.

    REF is the name of a snapshot, or a time (10m, 2h, 14:05, yesterday, 2026-11-22T14:05: the newest snapshot at it or
    before). A directory is as it was afterwards: names that were not in it are removed. With --to, that is the path of
    the copy, or a directory for it if it is one or ends with '/'.

    Each file is put in place as a whole, as a new one. A file that a process has open for writing is named, and
    nothing is restored without --force: that process would go on writing to the old one. If a restore is interrupted,
    the same command completes it.

    The exit status is 1 if anything could not be restored.
    """
    known, given = states.states_of(paths, mount)
    chosen = known.ref(ref)
    if chosen.is_main and destination is None:
        raise Failed("everything is as in 'main' already; --from takes a snapshot or a time, or --to another path")
    plan = _planned(known, chosen, sorted(set(given)), destination, mount)
    output = Output()
    if only_print:
        for action in plan.actions:
            output.line(f"{action.word:<10} {output.name('/' + os.fsdecode(action.path))}")
    else:
        if not force:
            _refuse_open_files(plan)
        plan.run()
        _sum_up(output, plan)
    complaints = Complaints()
    for path, reason in plan.skipped:
        complaints.add(f"'/{os.fsdecode(path)}' was left as it is: {reason}")
    complaints.finish()


def _planned(known: States, chosen: Ref, given: list[bytes], destination: str | None, mount: str | None) -> Restore:
    """Plan the restore. Raises `Failed` where a path is not in the state, or can't be put where it is to go."""
    scope = known.scope(given, chosen)
    for prefix in scope.missing:
        note(f"route '{prefix}' is left as it is: '{chosen.name}' holds nothing of it")
    older_ns = None if chosen.is_main else chosen.time_ns
    source, main = trees(known.root(chosen), known.files.mountpoint)
    plan = Restore(source, main, left_out=scope.left_out, ways=scope.ways, older_ns=older_ns)
    if destination is None:
        for path in scope.paths:
            _add(plan, chosen, path, None)
    else:
        for path in given:
            if path not in known.scope([path], chosen).paths:
                raise Failed(f"'/{os.fsdecode(path)}' lies in a route of which '{chosen.name}' holds nothing")
        for path, to in _targets(known, main, given, destination, mount).items():
            _add(plan, chosen, path, to)
    plan.finish()
    return plan


def _add(plan: Restore, chosen: Ref, path: bytes, to: bytes | None) -> None:
    shown = f"/{os.fsdecode(path)}"
    try:
        plan.add(path, to)
    except FileNotFoundError as error:
        if to is None or (error.filename or "").endswith(shown):
            raise Failed(f"'{shown}' is not in '{chosen.name}'") from None
        raise
    except NotADirectoryError as error:
        raise Failed(f"'{error.filename}' is no directory any more, so '{shown}' can't be put there") from None


def _targets(known: States, main: Tree, given: list[bytes], destination: str, mount: str | None) -> dict[bytes, bytes]:
    """Return the path that each path is restored to."""
    place = target.locate(destination, mount, follow=False)
    to = known.relative(place)
    entry = main.entry(to)
    is_directory = destination.endswith("/") or len(given) > 1 or (entry is not None and _is_directory(main, to))
    if is_directory and (entry is None or not _is_directory(main, to)):
        raise Failed(f"'{destination}' is not a directory")
    if b"" in given:
        raise Failed("the root can't be restored to another path; give the paths in it")
    found = {path: join(to, split(path)[1]) if is_directory else to for path in given}
    taken: dict[bytes, bytes] = {}
    for path, final in found.items():
        if final in taken:
            other, one = (os.fsdecode(each) for each in (taken[final], path))
            raise Failed(f"'/{other}' and '/{one}' would both become '/{os.fsdecode(final)}'")
        taken[final] = path
    return found


def _is_directory(tree: Tree, path: bytes) -> bool:
    try:
        tree.directory(path)
    except NotADirectoryError:
        return False
    return True


def _refuse_open_files(plan: Restore) -> None:
    """Raises `Failed` where a process has a file open for writing that would be replaced or removed."""
    found = writers(plan.going)
    complaints = Complaints()
    for writer in found:
        path = os.fsdecode(plan.going[writer.file])
        complaints.add(f"'/{path}' is open for writing by {writer.command} (process {writer.pid})")
    if found:
        raise Failed("nothing was restored; --force does it all the same, and those processes keep the old files")


def _sum_up(output: Output, plan: Restore) -> None:
    words = [action.word for action in plan.actions]
    removed = words.count("remove")
    restored = len(words) - removed
    if not words:
        note("everything was as it is to be already")
        return
    output.line(f"restored {restored} {'path' if restored == 1 else 'paths'}, removed {removed}")
