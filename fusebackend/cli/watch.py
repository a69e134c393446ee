"""`fusebackend watch`: changes of the files of a mount, from either face, as they happen."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, json_option, note
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.protocol import FileEvent

KIND_COLUMNS = len("attributes")


@click.command()
@click.argument("paths", nargs=-1, shell_complete=complete_path, metavar="[PATH]...")
@json_option("a line {kind, path, is_dir, source, moved_from, time_ns} for each; first {kind: 'watching', path}.")
@mount_option
def watch(paths: Sequence[str], output: Output, mount: str | None) -> None:
    """Print the changes at and below PATH as they happen, until Ctrl-C.

    Changes by every process and agent are printed: programs that use the mount, agents, and where a backend can tell,
    other hosts. A change is created, modified, attributes, deleted, moved, exchanged, unknown (look again at the files)
    or overflow (so much happened that not all was kept: look again at everything). Names of directories end with '/'.
    """
    places = [target.locate(given, mount) for given in paths] or [target.here(mount)]
    events: queue.SimpleQueue[tuple[Target, FileEvent | Exception]] = queue.SimpleQueue()
    with contextlib.ExitStack() as watches:
        for place in places:
            watches.callback(_begin(place, events))
            _announce(output, place)
        while True:
            place, event = events.get()
            if isinstance(event, Exception):
                raise event
            _print(output, place, event)


def _begin(place: Target, events: queue.SimpleQueue[tuple[Target, FileEvent | Exception]]) -> Callable[[], object]:
    """Have the changes of one path put into the queue. Returns what ends that. Raises `Failed`."""
    try:
        changes = place.files.watch(place.path)
    except (ValueError, RuntimeError) as error:  # no such path; too many watches already
        raise Failed(place.words(str(error))) from None

    def run() -> None:
        try:
            for event in changes:
                events.put((place, event))
        except Exception as error:  # raised again in the thread that waits for events
            events.put((place, error))

    threading.Thread(target=run, name="fusebackend-watch", daemon=True).start()
    return changes.close


def _announce(output: Output, place: Target) -> None:
    """Say that changes are printed from now on; and that nothing is there yet, which may be a misspelt path."""
    shown = place.shown(place.path)
    output.record({"kind": "watching", "path": shown})
    if output.terminal:
        output.note(f"watching '{shown}'; Ctrl-C ends it")
    if place.kind() is None:
        note(f"'{shown}' is not there yet")


def _print(output: Output, place: Target, event: FileEvent) -> None:
    path = place.shown(event.path)
    moved_from = None if event.moved_from is None else place.shown(event.moved_from)
    output.record({**asdict(event), "path": path, "moved_from": moved_from})
    moment = time.strftime("%H:%M:%S", time.localtime(event.time_ns / 1e9))
    names = output.name(path)
    if moved_from is not None:
        arrow = "<->" if event.kind == "exchanged" else "->"
        names = f"{output.name(moved_from)} {arrow} {names}"
    output.line(f"{moment} {event.kind:<{KIND_COLUMNS}} {names}")
    output.flush()
