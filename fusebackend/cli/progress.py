"""Progress on standard error, if that is a terminal: a bar for copies, a spinner for other work."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]
"""Called with the number of bytes copied since the last call."""


@contextlib.contextmanager
def progress(doing: str, size_bytes: int, *, quiet: bool = False) -> Iterator[Advance]:
    """Show how far `size_bytes` are, on a terminal that is not to be `quiet`; nothing is left of it at the end."""
    if quiet or not sys.stderr.isatty():
        yield lambda copied: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=size_bytes)
        yield lambda copied: bar.advance(task, copied)


SPINNER_DELAY_S = 0.5
"""Most commands have ended by then, and need not import what draws the spinner."""


@contextlib.contextmanager
def waiting(doing: str, *, quiet: bool = False) -> Iterator[None]:
    """Show `doing`, a spinner and the seconds for the length of a block, on a terminal that is not to be `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def spin() -> None:
        if done.wait(SPINNER_DELAY_S):
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            shown.add_task(doing, total=None)
            done.wait()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
