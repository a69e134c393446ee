"""`Awaited`: the `a…` forms of the verbs of a mount. `served.py` makes them; `awaited.pyi` has their signatures, for
editors and mypy, and `scripts/declared.py` writes it."""

from __future__ import annotations


class Awaited:
    """See the module's docstring."""
