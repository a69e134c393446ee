"""Backend conformance: what an agent face must do, as a class to subclass.

    from fusebackend.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        supports_move = False             # its cases are skipped, with that reason

        @pytest.fixture
        def backend(self):
            return MyBackend()            # a new and empty one for each case

What backends may differ in is declared on the class; `case.Case` says what there is, and what each word means. A
backend written with the names and the habits of the seeds alone runs with `SeedConformance`.
"""

from __future__ import annotations

from fusebackend.testing.conformance.awaiting import AwaitingCases
from fusebackend.testing.conformance.batches import BatchCases
from fusebackend.testing.conformance.case import Case, Probe, needs
from fusebackend.testing.conformance.editing import EditingCases
from fusebackend.testing.conformance.listing import ListingCases
from fusebackend.testing.conformance.moving import MovingCases
from fusebackend.testing.conformance.naming import NamingCases
from fusebackend.testing.conformance.reading import ReadingCases
from fusebackend.testing.conformance.searching import SearchingCases

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
    """What holds for a backend of the seeds' time too: the old names, numbered text from `read`, paths taken by the
    letter, `fnmatch` for globs. A verb that raises `NotImplementedError` is skipped."""

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
