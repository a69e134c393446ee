"""`backends/postgres/feed.py`: the payload of a transaction is its changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusebackend.backends.postgres.feed import PAYLOAD_BYTES, decode, encode
from fusebackend.protocol import MAX_NODE, NAME_MAX_BYTES, Change

NODES = st.integers(1, MAX_NODE)
NAMES = st.binary(min_size=1, max_size=NAME_MAX_BYTES).filter(lambda name: b"/" not in name and b"\0" not in name)
CHANGES = st.one_of(
    st.just(Change()),
    NODES.map(Change),
    st.tuples(st.none() | NODES, NODES, NAMES).map(lambda parts: Change(*parts)),
)


@given(changes=st.lists(CHANGES, min_size=1, max_size=30))
def test_what_was_changed_is_told_once_and_in_its_order(changes: list[Change]) -> None:
    payload = encode(changes)
    assert decode([payload]) == decode([payload, payload]) == list(dict.fromkeys(changes))
    assert payload.isascii()


def test_nothing_changed_is_nothing_told() -> None:
    assert encode([]) == ""


def test_too_many_changes_may_be_anything() -> None:
    changes = [Change(node=node, parent=1, name=b"\xff" * NAME_MAX_BYTES) for node in range(2, 1000)]
    assert PAYLOAD_BYTES * 0.9 < len(encode(changes[:170])) <= PAYLOAD_BYTES
    assert decode([encode(changes[:170])]) == changes[:170]
    assert decode([encode(changes)]) == [Change()]


@given(payload=st.text(alphabet=st.characters(blacklist_categories=["Cs"])) | st.sampled_from(("17", "[17]", "[[1]]")))
def test_what_nobody_of_ours_has_sent_means_anything(payload: str) -> None:
    assert payload == "[]" or decode([encode([Change(17)]), payload]) == [Change(17), Change()]
