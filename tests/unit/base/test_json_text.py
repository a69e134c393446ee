"""Any value as pretty JSON, hostile ones included."""

from __future__ import annotations

import datetime
import json
import time

from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.base.json_text import INDENTED_LEVELS, pretty

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner), max_leaves=30
)


@given(VALUES)
def test_it_is_the_value_with_sorted_keys(value):
    text = pretty(value)
    text.encode("utf-8")
    # A key or text may hold a surrogate pair in two characters, which JSON reads as one.
    again = json.dumps(value)
    assert json.dumps(json.loads(text), sort_keys=True) == json.dumps(json.loads(again), sort_keys=True)
    if text.isascii() and "\\u" not in text:
        assert text == json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


@for_each(
    ("value", "text"),
    [
        ({"b": [], "a": {}, "ö": "é"}, '{\n  "a": {},\n  "b": [],\n  "ö": "é"\n}'),
        ({1: "x", "a": None, (2,): 3}, '{\n  "(2,)": 3,\n  "1": "x",\n  "a": null\n}'),
        (datetime.date(2026, 1, 2), '"datetime.date(2026, 1, 2)"'),
        ({True: 1, None: 2, 1.5: float("nan")}, '{\n  "1.5": NaN,\n  "null": 2,\n  "true": 1\n}'),
        (10**40, "1" + "0" * 40),
        ("\x1b[31m\x7f\x9b\ud800é", '"\\u001b[31m\\u007f\\u009b\\ud800é"'),
    ],
)
def test_how_it_looks(value, text):
    assert pretty(value) == text


def test_a_container_inside_of_itself_ends():
    loop: dict[str, object] = {"a": 1}
    loop["b"] = [loop, {"c": loop}]
    assert json.loads(pretty(loop)) == {"a": 1, "b": ["…", {"c": "…"}]}
    same = [1]
    assert json.loads(pretty([same, same])) == [[1], [1]]


@for_each("levels", [INDENTED_LEVELS, INDENTED_LEVELS + 1, 900, 20_000])
def test_any_depth_is_written_and_the_text_stays_small(levels):
    value: object = ["deepest", "of all"]
    for _ in range(levels):
        value = {"in": value}
    text = pretty(value)
    assert text.count("{") == text.count("}") == levels
    assert '"of all"' in text
    assert len(text) < 10 * levels + 4 * INDENTED_LEVELS**2
    assert max(map(len, text.split("\n")[:INDENTED_LEVELS])) < 80
    if levels <= 900:
        assert json.loads(text) == value


def test_a_wide_value_deep_down_is_no_bomb():
    value: object = list(range(100_000))
    for _ in range(800):
        value = [value]
    assert len(pretty(value)) < 1_000_000


def test_an_object_that_can_not_be_described_is_named():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    assert pretty({"x": Odd()}) == '{\n  "x": "<Odd, whose repr failed: RuntimeError>"\n}'


def test_ten_megabytes_take_a_second():
    value = {"text": "x\n" * 2_500_000, "numbers": [{"a": number, "b": "y"} for number in range(100_000)]}
    began = time.thread_time()
    assert len(pretty(value)) > 10_000_000
    assert time.thread_time() - began < 10
