"""`PgSnapshot`: a position in the order of commits, which is not that of their numbers."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.backends.postgres.feed import PgSnapshot


@st.composite
def histories(draw: st.DrawFn) -> list[PgSnapshot]:
    """Snapshots of a server, in their order: transactions begin with ascending numbers and end in any order.

    As in GetSnapshotData (procarray.c), `xmax` follows the highest number that is over.
    """
    running: set[int] = set()
    following, over = 3, 2
    taken = []
    for step in draw(st.lists(st.sampled_from(["begin", "end", "take"]), max_size=40)):
        if step == "begin":
            running.add(following)
            following += 1
        elif step == "end" and running:
            ended = draw(st.sampled_from(sorted(running)))
            running.remove(ended)
            over = max(over, ended)
        elif step == "take":
            listed = frozenset(xid for xid in running if xid <= over)
            taken.append(PgSnapshot(min(listed, default=over + 1), over + 1, listed))
    return taken


@given(taken=histories())
def test_what_a_snapshot_sees_all_later_ones_see(taken: list[PgSnapshot]) -> None:
    for earlier, later in itertools.pairwise(taken):
        seen = [{xid for xid in range(50) if snapshot.sees(xid)} for snapshot in (earlier, later)]
        assert seen[0] <= seen[1]
        assert later.covers(earlier)
        assert earlier.covers(later) == (seen[0] == seen[1])


def test_what_is_none_is_an_error() -> None:
    for text in ("", "1", "1:2", "a:b:c", "1:2:x"):
        with pytest.raises(ValueError, match=r"unpack|invalid"):
            PgSnapshot.parse(text)


def test_it_agrees_with_the_server(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as open_for_long, psycopg.connect(postgres_dsn, autocommit=True) as other:
        open_for_long.execute("SELECT pg_current_xact_id()")
        for _ in range(3):
            other.execute("SELECT pg_current_xact_id()")
        ((text,),) = other.execute("SELECT pg_current_snapshot()::text").fetchall()
        snapshot = PgSnapshot.parse(text)
        assert str(snapshot) == text
        assert snapshot.running
        query = "SELECT xid, pg_visible_in_snapshot(xid::text::xid8, %s) FROM generate_series(%s::int8, %s) xid"
        for xid, is_seen in other.execute(query, [text, max(1, snapshot.xmin - 5), snapshot.xmax + 5]):
            assert snapshot.sees(xid) == is_seen
