"""A mount of a native volume against a plain directory, over a table of thousands of calls by root and by others.

    FUSEBACKEND_LIKENESS_ROWS=0 pytest tests/mounted/test_likeness.py      all rows; else so many of each table

tmpfs is compared with the disk first: they agree, which proves the table before it accuses a mount.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import mounts
import pytest
import trees
from hypothesis.stateful import run_state_machine_as_test
from kinds import KINDS, NATIVE_BY_DAY
from profiles import amount, examples

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.protocol import Volume
from fusebackend.testing.likeness import LikenessCases
from fusebackend.testing.model import VolumeMachine

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users as well")

ROWS = amount("FUSEBACKEND_LIKENESS_ROWS", day=80, night=1_000)


@as_root
class TestSharedMemory(LikenessCases):
    rows_per_table = ROWS

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls) -> Iterator[Path]:
        yield from trees.in_shared_memory()


class Mounted(LikenessCases):
    rows_per_table = ROWS
    url: str

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with mounts.of_kind(request, tmp_path_factory, cls.url, options=mounts.OTHERS, limit_s=3600) as server:
            yield server.path


@as_root
class TestSqlite(Mounted):
    url = "sqlite:{tmp}/volume.db"


@as_root
@pytest.mark.night
class TestMemory(Mounted):
    url = "memory:"


# --------------------------------------------------------------------------------------------------------------
# Random system calls on a mount of every native volume, against a dict; a plain directory has proved the machine
# --------------------------------------------------------------------------------------------------------------

SETTINGS = hypothesis.settings(
    max_examples=examples(25),
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(params=NATIVE_BY_DAY)
def mountpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    url = KINDS[request.param].url
    with mounts.of_kind(request, tmp_path_factory, url, options=mounts.OTHERS) as server:
        yield server.path


def test_system_calls_do_what_a_dict_says(mountpoint: Path) -> None:
    numbers = itertools.count()

    class Machine(VolumeMachine):
        """Runs each example in a directory of its own, beside the files of earlier ones."""

        def make_volume(self) -> Volume:
            directory = mountpoint / f"run{next(numbers)}"
            directory.mkdir()
            return DirectoryVolume(directory)

    run_state_machine_as_test(Machine, settings=SETTINGS)
    assert next(numbers) > 1
