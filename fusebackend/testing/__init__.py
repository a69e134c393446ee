"""Suites for authors of backends and volumes: subclass a class, override a fixture, run pytest.

`conformance` holds an agent face to its verbs, `posix` a mounted directory to POSIX. They need pytest, and work for
code outside of this package as they do for ours.
"""

import pkgutil

import pytest

# Without this, a failed assertion in a suite would not show the values it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
