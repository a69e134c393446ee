"""Stores of each kind, and backends over them."""

from __future__ import annotations

import contextlib

import pytest
import stores

from fusebackend.backends import StoreBackend


@pytest.fixture(params=stores.KINDS)
def store(request, tmp_path):
    with stores.of_request(request, request.param, tmp_path) as store:
        yield store


@pytest.fixture
def backend(store):
    with StoreBackend(store, namespace=stores.NS) as backend:
        yield backend


@pytest.fixture(scope="module")
def store_of(request, tmp_path_factory):
    """A function that gives the module's store of a kind, with a namespace in it that no test has used."""
    made = {}
    with contextlib.ExitStack() as stack:

        def store(kind):
            if kind not in made:
                dsn = (
                    stack.enter_context(request.getfixturevalue("postgres").database()) if kind == "postgres" else None
                )
                made[kind] = stack.enter_context(stores.opened(kind, tmp_path_factory.mktemp(kind), dsn))
            return made[kind], stores.fresh_namespace()

        yield store
