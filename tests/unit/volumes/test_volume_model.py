"""Random operations on every native volume, against a dict; and on a plain directory, which proves the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import hypothesis
from hypothesis.stateful import rule
from profiles import examples
from sqlite_machine import FailingSqliteMachine, SqliteMachine

from fusebackend.backends.directory.volume import DirectoryVolume
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.protocol import Volume
from fusebackend.testing.model import DirectoryMachine, VolumeMachine

SETTINGS = hypothesis.settings(max_examples=examples(40), stateful_step_count=50, deadline=None, database=None)
FAILING = hypothesis.settings(SETTINGS, max_examples=examples(10))


class MemoryMachine(VolumeMachine):
    def make_volume(self) -> Volume:
        return InMemoryVolume()


class DirectoryVolumeMachine(VolumeMachine):
    owners: ClassVar = ((0, 0), (1000, 1000)) if os.geteuid() == 0 else ((os.geteuid(), os.getegid()),)

    def make_volume(self) -> Volume:
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/root"
        os.mkdir(self.path)
        return self.reopen_volume()

    def reopen_volume(self) -> Volume:
        return DirectoryVolume(self.path)

    @rule()
    def close_descriptors(self) -> None:
        """Each directory has to be found again by the names above it."""
        self.volume._places.forget()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(os.fsencode(self.directory))


class PlainDirectoryMachine(DirectoryMachine):
    def make_directory(self) -> Path:
        self.directory = Path(tempfile.mkdtemp())
        return self.directory

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(os.fsencode(self.directory))


for machine in (MemoryMachine, SqliteMachine, FailingSqliteMachine, DirectoryVolumeMachine, PlainDirectoryMachine):
    case = machine.TestCase
    case.settings = FAILING if machine is FailingSqliteMachine else SETTINGS
    globals()[f"Test{machine.__name__}"] = case
del machine, case
