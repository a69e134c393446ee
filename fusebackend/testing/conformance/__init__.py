"""Backend conformance: the required behaviour of an agent face, as a class to subclass.

    from fusebackend.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        supports_move = False             # what needs it is skipped, with that reason

        @pytest.fixture
        def backend(self):
            return MyBackend()            # a new and empty one for each test

The class declares the differences that a backend may have; `case.Case` lists and explains them. A backend with only
the names and the habits of the seeds runs with `SeedConformance`.

case.py                 the base of the cases
looking.py              `ls`, `read`, `glob`, `grep`
changing.py             `write`, `edit`, `delete`, `move`, uploads and downloads
naming.py awaiting.py   paths; the `a…` forms
"""

from __future__ import annotations

from fusebackend.testing.conformance.awaiting import AwaitingCases
from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.conformance.changing import BatchCases, EditingCases, MovingCases
from fusebackend.testing.conformance.looking import ListingCases, ReadingCases, SearchingCases
from fusebackend.testing.conformance.naming import NamingCases
from fusebackend.testing.each import needs

__all__ = ["BackendConformance", "Case", "Probe", "SeedConformance", "needs"]


class BackendConformance(
    ReadingCases,
    EditingCases,
    MovingCases,
    ListingCases,
    SearchingCases,
    BatchCases,
    NamingCases,
    AwaitingCases,
):
    """Every case. Give it a `backend`, and declare what yours does differently."""


class SeedConformance(BackendConformance):
    """The cases that a backend of the seeds passes too: the old names, numbered text from `read`, paths not normalised,
    `fnmatch` for globs. A verb that raises `NotImplementedError` is skipped."""

    seed_vocabulary = True
    supports_delete = False
    supports_move = False
    reads_records = False
    byte_exact = False
    keeps_empty_directories = False
    checks_paths = False
    normalises_paths = False
    any_name = False
    shell_globs = False
    finds_text_only = False
    preserves_crlf = False
    sizes_in_bytes = False
    ends_when_cancelled = False
