"""Suites for authors of backends and volumes: subclass a class, override a fixture, run pytest.

conformance.py   the verbs of an agent face
posix/           a mounted directory
likeness.py      a mount compared with a plain directory
model.py         random operations against a model
snapshots.py     snapshots of a volume
branches.py      branches over a volume
exerciser.py     random I/O on one file
by_path.py       files of a volume by their paths
each.py          the cases of one test, in a loop that names those that failed

They need pytest (`model`, `snapshots` and `branches` also hypothesis), and test code outside of this package as well.
"""

import pkgutil

import pytest

# Without this, a failed assertion in a suite would not show the values it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
