"""Progress on standard error, if that is a terminal: a bar for copies, a spinner for other work."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]
"""Called with the number of bytes copied since the last call."""

DELAY_S = 0.5
"""Most commands have ended by then, and need not import what draws."""

REDRAW_S = 0.1


@contextlib.contextmanager
def progress(doing: str, size_bytes: int | None = None, *, quiet: bool = False) -> Iterator[Advance]:
    """Show for the length of a block, on a terminal that is not to be `quiet`, how far `size_bytes` are; without a
    size, that it goes on, and for how long. Nothing is left of it at the end."""
    copied = 0
    done = threading.Event()

    def advance(count: int) -> None:
        nonlocal copied
        copied += count

    def show() -> None:
        if done.wait(DELAY_S):
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        text = TextColumn("{task.description}")
        columns: list[ProgressColumn] = [SpinnerColumn(), text, TimeElapsedColumn()]
        if size_bytes is not None:
            columns = [text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(doing, total=size_bytes, completed=copied)
            while not done.wait(REDRAW_S):
                shown.update(task, completed=copied)

    if quiet or not sys.stderr.isatty():
        yield advance
        return
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        done.set()
        thread.join()
