"""`backends/postgres/feed.py`: the notices of a transaction are its changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusebackend.backends.postgres.feed import MAX_PAYLOADS, PAYLOAD_BYTES, channel, decode, encode
from fusebackend.protocol import MAX_NODE, NAME_MAX_BYTES, Change

NODES = st.integers(1, MAX_NODE)
NAMES = st.binary(min_size=1, max_size=NAME_MAX_BYTES).filter(lambda name: b"/" not in name and b"\0" not in name)
CHANGES = st.one_of(
    st.just(Change()),
    NODES.map(Change),
    st.tuples(st.none() | NODES, NODES, NAMES).map(lambda parts: Change(*parts)),
)


def heard(session: str, payloads: list[str]) -> list[Change]:
    """Return the changes that the other hosts read."""
    assert all(payload.startswith(f"{session} ") for payload in payloads)
    assert decode(payloads + payloads) == decode(payloads)
    return decode(payloads)


@given(changes=st.lists(CHANGES, max_size=30))
def test_what_was_changed_is_told_once_and_in_its_order(changes: list[Change]) -> None:
    payloads = encode("4f0c", changes)
    assert heard("4f0c", payloads) == list(dict.fromkeys(changes))
    assert all(payload.isascii() and len(payload) <= PAYLOAD_BYTES for payload in payloads)


def test_nothing_changed_is_nothing_told() -> None:
    assert encode("4f0c", []) == []


def test_many_changes_take_several_payloads() -> None:
    changes = [Change(node=node, parent=1, name=b"\xff" * NAME_MAX_BYTES) for node in range(2, 30)]
    payloads = encode("4f0c", changes)
    assert 1 < len(payloads) <= MAX_PAYLOADS
    assert heard("4f0c", payloads) == changes


def test_too_many_changes_may_be_anything() -> None:
    changes = [Change(node=node, parent=1, name=b"\xff" * NAME_MAX_BYTES) for node in range(2, 1000)]
    assert heard("4f0c", encode("4f0c", changes)) == [Change()]


@given(payload=st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_what_nobody_of_ours_has_sent_means_something(payload: str) -> None:
    changes = decode([payload])
    assert changes, f"{payload!r} is passed over"


def test_what_makes_no_sense_means_anything() -> None:
    for payload in ("4f0c 17", "4f0c a/b/c", "4f0c 1/2/3/4", "4f0c 1/2//", "4f0c  ", "4f0c"):
        assert Change() in decode(["4f0c 17//", payload])
    assert decode(["4f0c 17//", "4f0c", "5 18//"]) == [Change(17), Change(), Change(18)]


def test_each_volume_has_a_channel() -> None:
    assert channel(7) == "fusebackend_7"
