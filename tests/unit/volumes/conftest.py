"""A backend in memory, and its volume."""

from __future__ import annotations

import pytest

from fusebackend.backends import InMemoryBackend


@pytest.fixture
def backend():
    with InMemoryBackend() as backend:
        yield backend


@pytest.fixture
def tree(backend):
    return backend.volume
