"""Real work on a mount of a volume in PostgreSQL: cases of the other volumes, with fewer files.

Each operation is two round trips to a server on the same two processors; a thousand files would take minutes. Left out
is what no volume sees differently: `vim`, `rm` and `mv` make system calls of the POSIX cases, which run here, too, and
`rsync` makes the files that `tar` makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import test_real_work
import trees
from kinds import Kind
from services.postgres import Postgres
from test_builds import test_make_builds_a_c_project, test_two_writers_on_one_sqlite_database
from test_real_work import (
    test_git_clone_commit_branch_gc_fsck,
    test_no_time_goes_back_when_it_is_set_to_now,
    test_tar_in_and_out,
)

__all__ = [
    "test_git_clone_commit_branch_gc_fsck",
    "test_make_builds_a_c_project",
    "test_no_time_goes_back_when_it_is_set_to_now",
    "test_tar_in_and_out",
    "test_two_writers_on_one_sqlite_database",
]

FILES = 120


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Kind]]:
    tmp = tmp_path_factory.mktemp("postgres")
    with postgres.database() as dsn:
        url = f"postgres:{dsn}?volume=work"
        with mounts.mounted(tmp / "mnt", url, routes={"/other": "memory:"}) as server:
            yield server.path, Kind(url)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("sources")
    trees.make_repository(root, FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_real_work, "SOURCES", FILES)
        yield root
