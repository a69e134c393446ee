"""Random system calls on a mount of every native volume, against a dict. A plain directory has proved the machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import mounts
import pytest
from hypothesis.stateful import run_state_machine_as_test
from kinds import KINDS
from profiles import examples

from fusebackend.testing.model import DirectoryMachine

pytestmark = pytest.mark.mounted

NATIVE = [name for name, kind in KINDS.items() if kind.features.random_writes]
SETTINGS = hypothesis.settings(
    max_examples=examples(25),
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(params=NATIVE)
def mountpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "files").mkdir()
    kind = KINDS[request.param]
    with mounts.mounted(tmp_path / "mnt", kind.url.format(tmp=tmp_path), options=mounts.OTHERS) as server:
        yield server.path


def test_system_calls_do_what_a_dict_says(mountpoint: Path) -> None:
    numbers = itertools.count()

    class Machine(DirectoryMachine):
        """Runs each example in a directory of its own, beside the files of earlier ones."""

        def make_directory(self) -> Path:
            directory = mountpoint / f"run{next(numbers)}"
            directory.mkdir()
            return directory

    run_state_machine_as_test(Machine, settings=SETTINGS)
    assert next(numbers) > 1
