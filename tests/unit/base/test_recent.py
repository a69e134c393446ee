"""A dict that keeps the items used last."""

from __future__ import annotations

from fusebackend.base.recent import Recent, RecentBytes


def test_the_item_used_least_recently_goes() -> None:
    recent: Recent[str, int] = Recent(3)
    assert recent.use("a") is None
    assert recent.setdefault("a", 1) == recent.setdefault("a", 2) == 1
    recent["b"], recent["c"] = 2, 3
    assert recent.use("a") == 1
    assert recent.setdefault("d", 4) == 4
    assert list(recent.items()) == [("c", 3), ("a", 1), ("d", 4)]
    recent["c"] = 5
    recent["e"] = 6
    assert list(recent.items()) == [("d", 4), ("c", 5), ("e", 6)]


def test_what_is_dropped_is_told_of() -> None:
    dropped: list[int] = []
    recent: Recent[int, int] = Recent(2, dropped.append)
    for key in (1, 2, 1, 3):
        recent[key] = -key
    assert dropped == [-2]


def test_of_items_with_sizes_the_least_recently_used_go_and_one_stays() -> None:
    dropped: list[str] = []
    recent: RecentBytes[str, str] = RecentBytes(10, dropped.append)
    recent.put("a", "A", 4)
    recent.put("b", "B", 4)
    assert recent.get("a") == "A"
    recent.put("c", "C", 4)
    assert (dropped, recent.bytes) == (["B"], 8)
    recent.put("large", "L", 99)
    assert (dropped, recent.bytes) == (["B", "A", "C"], 99)
    recent.put("large", "small", 1)
    assert (dropped, recent.bytes, list(recent.kept)) == (["B", "A", "C"], 1, ["large"])
