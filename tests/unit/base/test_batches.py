"""Lists that stay below two limits."""

from __future__ import annotations

from collections.abc import Iterator

from fusebackend.base.batches import by_size


def test_neither_limit_is_passed_and_the_order_stays() -> None:
    assert list(by_size([], len, 3, 10)) == []
    assert list(by_size(["a"] * 7, len, 3, 10)) == [["a"] * 3, ["a"] * 3, ["a"]]
    assert list(by_size(["aaaa", "bbbb", "cc", "d"], len, 9, 10)) == [["aaaa", "bbbb", "cc"], ["d"]]


def test_what_is_too_large_is_alone() -> None:
    assert list(by_size(["a", "b" * 11, "", "c"], len, 9, 10)) == [["a"], ["b" * 11], ["", "c"]]


def test_no_more_is_taken_than_a_list_needs() -> None:
    taken = []

    def items() -> Iterator[str]:
        for item in "abcdef":
            taken.append(item)
            yield item

    assert next(by_size(items(), len, 2, 10)) == ["a", "b"]
    assert taken == ["a", "b", "c"]
