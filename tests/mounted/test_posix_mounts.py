"""The POSIX cases on a mount of each volume. A plain directory passes them too, in `tests/unit/testing/`.

By day they run on each kind of volume, and on a branch over the kind that has the least of its own. The night adds
places that only pass calls on: a route, the tree of commands, and branches over the other kinds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from profiles import amount

import fusebackend
from fusebackend.protocol import Features
from fusebackend.testing.posix import Limits, PosixCases

OPTIONS = ("allow_other",) if os.geteuid() == 0 else ()
"""Other users have access where root runs the tests; only there do cases with other users run."""

ENTRIES = amount("FUSEBACKEND_POSIX_ENTRIES", day=220, night=3000)
"""Of a directory that is read while it changes: two requests by day, for the kernel asks for some 200 at a time."""

FEWER = amount("FUSEBACKEND_POSIX_ENTRIES", day=220, night=500)
"""Where each change is several round trips, or a listing."""


class Mounted(PosixCases):
    """Mounts `url` once for all cases, see `mounts.of_kind`."""

    limits = Limits(other_users=bool(OPTIONS), many_entries=ENTRIES)
    url: str
    routes: dict[str, str] = {}
    below = ""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with mounts.of_kind(request, tmp_path_factory, cls.url, cls.routes, options=OPTIONS) as server:
            yield server.path / cls.below


class TestSqlite(Mounted):
    url = "sqlite:{tmp}/volume.db"


class TestMemory(Mounted):
    url = "memory:"


@pytest.mark.night
class TestAnotherTree(Mounted):
    """The tree that commands see. Only the server's own user has access."""

    url = "memory:"
    below = ".fusebackend/private/sandbox"
    limits = Limits(other_users=False, many_entries=ENTRIES)


class TestDirectory(Mounted):
    """`dir:`, with the limits of the disk below: here those of ext4."""

    url = "dir:{tmp}/files"
    limits = Limits(huge_files=False, xattr_value_bytes=3000, other_users=bool(OPTIONS), many_entries=ENTRIES)


class TestForeign(Mounted):
    """A foreign backend with the agent face alone. Its files are buffered while they are open and stored as a whole, so
    the cases of random writes run as well."""

    url = "python:seed_backends:DuckBackend"
    features = Features(
        rename=False, links=False, symlinks=False, special_files=False, xattrs=False, persistent_modes=False
    )
    limits = Limits(huge_files=False, sparse=False, byte_names=False, many_entries=FEWER, other_users=bool(OPTIONS))


class TestPostgres(Mounted):
    url = "postgres:{dsn}?volume=posix"
    limits = Limits(many_entries=FEWER, other_users=bool(OPTIONS), noatime=False)


@pytest.mark.night
class TestRoute(Mounted):
    """A volume below a route, which behaves as at the root."""

    url = "memory:"
    routes = {"/work/files": "sqlite:{tmp}/volume.db"}
    below = "work/files"


class InBranch(Mounted):
    """A branch behaves as a native volume, whatever is below it."""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with mounts.of_kind(request, tmp_path_factory, cls.url, options=OPTIONS) as server:
            (server.path / "below").write_text("below")
            with fusebackend.connect(server.path) as files:
                files.create_branch("cases")
            yield server.path / ".fusebackend/branches/cases"


@pytest.mark.night
class TestBranchOverSqlite(InBranch):
    url = "sqlite:{tmp}/volume.db"


@pytest.mark.night
class TestBranchOverMemory(InBranch):
    url = "memory:"


class TestBranchOverDirectory(InBranch):
    url = "dir:{tmp}/files"


@pytest.mark.night
class TestBranchOverStore(InBranch):
    url = "store+sqlite:{tmp}/store.db?ns=files"
