"""A progress bar for whoever waits for a tree to be copied, on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]
"""Told how many more bytes have been copied."""


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
