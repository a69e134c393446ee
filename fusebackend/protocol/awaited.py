"""`Awaited`: the `a…` forms of the verbs of a mount, which `served.py` makes; `agent.py` makes those of a backend.
`awaited.pyi` has the signatures of both, for editors and mypy, and `scripts/declared.py` writes it."""

from __future__ import annotations


class Awaited:
    """See the module's docstring."""
