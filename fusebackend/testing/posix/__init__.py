"""POSIX cases: the required behaviour of a directory, as a class to subclass.

A plain directory passes them, which proves the cases before they accuse a file system. To run them on yours:

    from fusebackend.testing.posix import PosixCases

    class TestMine(PosixCases):
        features = Features(links=False)      # cases that need hard links are skipped, with that reason

        @pytest.fixture(scope="class")        # any scope: each case makes its own directory below it
        @classmethod
        def root(cls):
            yield pathlib.Path("/mnt/mine")

A case is about an answer of the file system. What the kernel answers by itself, whatever the file system would say, has
none: a path through a file, a target of another kind, the offset and the flags of a descriptor, the checks of modes
that `default_permissions` leaves to it. `fusebackend.testing.likeness` compares such calls with a plain directory.

The class declares the differences that POSIX allows between file systems; `case.Limits` lists them. Cases that need
another user run only as root, and with `limits.other_users`.

case.py         the base of the cases
names.py        names, links, renames, directories
files.py        open files: data, mapping, locks
attributes.py   modes, owners, times, extended attributes
"""

from __future__ import annotations

from fusebackend.testing.each import needs
from fusebackend.testing.posix.attributes import AttributeCases, ExtendedAttributeCases, OwnershipCases, TimeCases
from fusebackend.testing.posix.case import Case, Limits
from fusebackend.testing.posix.files import DataCases, LockCases, MappingCases, OpenCases
from fusebackend.testing.posix.names import DirectoryCases, LinkCases, NameCases, RenameCases

__all__ = ["Case", "Limits", "PosixCases", "needs"]


class PosixCases(
    OpenCases,
    DataCases,
    MappingCases,
    NameCases,
    DirectoryCases,
    RenameCases,
    LinkCases,
    AttributeCases,
    OwnershipCases,
    TimeCases,
    ExtendedAttributeCases,
    LockCases,
):
    """Every case. Give it a `root`, and declare missing features and narrower limits in `features` and `limits`."""
