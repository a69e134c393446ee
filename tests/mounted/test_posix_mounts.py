"""The POSIX cases on a mount of each volume. `test_posix_plain.py` shows that a plain directory passes them too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from services.postgres import Postgres

from fusebackend.protocol import Features
from fusebackend.testing.posix import Limits, PosixCases

pytestmark = pytest.mark.mounted

OPTIONS = ("allow_other",) if os.geteuid() == 0 else ()
"""Other users may come in where root runs the tests, which is where the cases that need them run."""


class Mounted(PosixCases):
    """Mounts `url` once for all cases; `{tmp}` in it is a fresh directory."""

    limits = Limits(other_users=bool(OPTIONS))
    url: str
    routes: dict[str, str] = {}
    below = ""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        tmp = tmp_path_factory.mktemp("mount")
        (tmp / "files").mkdir()
        routes = {prefix: url.format(tmp=tmp) for prefix, url in cls.routes.items()}
        with mounts.mounted(tmp / "mnt", cls.url.format(tmp=tmp), routes=routes, options=OPTIONS) as server:
            yield server.path / cls.below


class TestSqlite(Mounted):
    url = "sqlite:{tmp}/volume.db"


class TestMemory(Mounted):
    url = "memory:"


class TestAnotherTree(Mounted):
    """The tree that commands see. Only the server's own user comes there."""

    url = "memory:"
    below = ".fusebackend/sandbox"
    limits = Limits(other_users=False)


class TestDirectory(Mounted):
    """Bound by what the disk below can do: here as narrow as ext4."""

    url = "dir:{tmp}/files"
    limits = Limits(huge_files=False, xattr_value_bytes=3000, other_users=bool(OPTIONS), noatime=False)


class TestForeign(Mounted):
    """Somebody else's backend with the agent face alone. Its files are whole, and held in a buffer while they are open:
    writes anywhere work on that, so the cases that need them run as well."""

    url = "python:seed_backends:DuckBackend"
    features = Features(
        rename=False, links=False, symlinks=False, special_files=False, xattrs=False, persistent_modes=False
    )
    limits = Limits(huge_files=False, sparse=False, byte_names=False, many_entries=500, other_users=bool(OPTIONS))


class TestPostgres(Mounted):
    """Each operation is two round trips, so there are fewer entries where there are many."""

    limits = Limits(many_entries=500, other_users=bool(OPTIONS), noatime=False)

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Path]:
        tmp = tmp_path_factory.mktemp("mount")
        with (
            postgres.database() as dsn,
            mounts.mounted(tmp / "mnt", f"postgres:{dsn}?volume=posix", options=OPTIONS) as server,
        ):
            yield server.path


class TestRoute(Mounted):
    """A volume below a route is no different from one at the root."""

    url = "memory:"
    routes = {"/work/files": "sqlite:{tmp}/volume.db"}
    below = "work/files"
