"""Run one request of a `FileSystem` on a loop of its own."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

T = TypeVar("T")


def run(call: Awaitable[T]) -> T:
    async def main() -> T:
        return await call

    return trio.run(main)
