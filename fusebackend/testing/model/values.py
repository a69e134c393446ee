"""Names, offsets and contents that the machines try: few, so that they collide, and on both sides of every border."""

from __future__ import annotations

import random

from hypothesis import strategies as st

NAMES = (b"a", b"b", b"c", b"d.txt", b"\xff\xfe", b"new\nline", "ü 字".encode(), b"n" * 255)
XATTRS = (b"user.a", b"user.b")
BORDERS = (0, 1, 100, 4095, 4096, 4097, 65535, 65536, 65537, 131071, 131072, 131073, 200_000)
"""Offsets and sizes around pages and chunks, where off-by-one errors show."""

MAX_FILE_BYTES = 320_000

NOISE = random.Random(0).randbytes(2 * MAX_FILE_BYTES)
"""The bytes of files. No two places of it look the same, so that misplaced bytes show."""

offsets = st.sampled_from(BORDERS) | st.integers(0, 200_000)
lengths = st.sampled_from(BORDERS[1:8]) | st.integers(1, 100_000)
contents = st.builds(lambda start, length: NOISE[start : start + length], st.integers(0, MAX_FILE_BYTES), lengths)
times = st.integers(-(10**18), 4 * 10**18)
