"""`raising`: stands for a method that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Return a function that raises this, whatever it is given."""

    def fail(*arguments: object, **options: object) -> Any:
        raise error

    return fail
