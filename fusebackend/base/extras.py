"""The extra of each optional module, for errors that name the package to install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

from fusebackend.base.errors import UserError

EXTRA_OF = {
    "agents": "openai",
    "anthropic": "anthropic",
    "deepagents": "deepagents",
    "docker": "docker",
    "e2b": "e2b",
    "fsspec": "fsspec",
    "langgraph": "langgraph",
    "mcp": "mcp",
    "modal": "modal",
    "obstore": "s3",
    "ormsgpack": "langgraph",
    "prometheus_client": "metrics",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
}
"""Module → extra of `pyproject.toml`."""


class MissingExtraError(UserError, ModuleNotFoundError):
    """A package of an extra is not installed. Its text is one line for the user, with the command that installs it."""


def is_installed(module: str) -> bool:
    """Return True if a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its package; sys.modules has None for it
        return False


@contextlib.contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Have a module that is missing inside named with its extra: "No module named 'obstore'" does not name the extra.

    Raises:
        MissingExtraError: the module is one of an extra.
        ModuleNotFoundError: any other, as it came.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF or "pip install" in str(error):
            raise
        install = f"pip install 'fusebackend[{EXTRA_OF[module]}]'"
        raise MissingExtraError(f"{name} needs {module}, which is not installed: {install}", name=module) from error
