"""`together`: calls at the same time. `beside`: one beside a block, and `over_and_over` a step again and again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

LIMIT_S = 60.0

T = TypeVar("T")


def together(*calls: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Run each in a thread of its own; all must succeed, and end within `limit_s`."""
    failures: list[BaseException] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a call does not end"
    assert not failures, failures


@contextlib.contextmanager
def beside(call: Callable[[], T], *, limit_s: float = LIMIT_S) -> Iterator[Future[T]]:
    """Run a call in a thread beside the block. It must succeed, and end within `limit_s` after the block."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        yield running
        running.result(limit_s)


@contextlib.contextmanager
def over_and_over(step: Callable[[], Any], *, threads: int = 1, pause_s: float = 0.001) -> Iterator[None]:
    """Take a step again and again in threads of their own, to the end of the block. Each must succeed.

    Args:
        pause_s: between two steps; without one the threads take a processor from what they are to watch.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause_s):
            step()

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        try:
            yield
        finally:
            ended.set()
        for each in running:
            each.result(LIMIT_S)
