"""`together`: calls at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LIMIT_S = 60.0


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
