"""The one set of glob rules, as a table and against one expression for the whole pattern."""

from __future__ import annotations

import functools
import re
import time

import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from wcmatch import glob as wcglob

from fusebackend.base import globs
from fusebackend.base.globs import GlobError, compile_glob

relaxed = settings(deadline=None)

SEGMENTS = st.text(alphabet="ab.", min_size=1, max_size=4).filter(lambda segment: segment not in (".", ".."))
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4)
FRAGMENTS = [
    "*", "**", "/", "a", "b", ".", "?", "[ab]", "[!a]", "{a,b}", "{a/b,c}", "{,a}", "{a,b/}", "\\", "{", "}",
    ",", "[", "]", "!", "**/", "/**", "[[:alpha:]]", "{1..3}", "-", "^", "{**,a}", "{a,**/b}", "\\*", "\\/",
    "(", ")", "|", "~", "\n",
]  # fmt: skip
ODD_SEGMENTS = st.text(alphabet="ab.\n!*{[", min_size=1, max_size=4).filter(lambda segment: segment not in (".", ".."))
ODD_PATHS = st.lists(ODD_SEGMENTS, min_size=1, max_size=6)


@functools.cache
def whole_expression(pattern):
    *directories, last = pattern.split("/")
    wanted = "/".join([*(segment for segment in directories if segment not in ("", ".")), last])
    included, _ = wcglob.translate(wanted, flags=wcglob.BRACE | wcglob.GLOBSTAR)
    return re.compile("|".join(included))


def matches_as_a_whole(pattern, path):
    subject = path if "/" in pattern else path.rpartition("/")[2]
    return whole_expression(pattern).fullmatch(subject) is not None


class TestRules:
    @for_each(
        ("pattern", "path", "matches"),
        [
            # No slash: the name, at any depth.
            ("*.py", "a.py", True),
            ("*.py", "deep/er/a.py", True),
            ("*.py", "a.pyc", False),
            ("*.py", ".a.py", False),
            (".*", "deep/.env", True),
            ("a?.txt", "ab.txt", True),
            ("[!a]*", "b", True),
            ("[!a]*", "a", False),
            ("{a,b}.txt", "x/b.txt", True),
            ("{1..3}.txt", "2.txt", True),
            ("**", "a/b", True),
            # A slash: the path below the search root.
            ("src/*.py", "src/a.py", True),
            ("src/*.py", "x/src/a.py", False),
            ("src/*.py", "src/x/a.py", False),
            ("src/**/*.py", "src/a.py", True),
            ("src/**/*.py", "src/x/y/a.py", True),
            ("src/**", "src/x/y", True),
            ("src/**", "src", False),
            ("**/x/*", "a/b/x/c", True),
            ("{a,b/c}/*", "b/c/d", True),
            ("{a/b,c}", "x/c", False),
            # A leading slash anchors and means no more; nor do `.` and repeated slashes.
            ("/a.py", "a.py", True),
            ("/a.py", "x/a.py", False),
            ("./a.py", "a.py", True),
            ("./a.py", "x/a.py", False),
            ("a//b", "a/b", True),
            ("a/./b", "a/b", True),
            # Dot files; names alone are broader than `**`.
            ("*.yml", ".ci/a.yml", True),
            ("**/*.yml", ".ci/a.yml", False),
            (".ci/*.yml", ".ci/a.yml", True),
            ("**/.ci/*", "x/.ci/a", True),
            ("*/a", ".x/a", False),
            ("?a", ".a", False),
            ("[.]a", ".a", False),
            # No negation; quoting; names that look like patterns.
            ("!a", "b", False),
            ("!a", "!a", True),
            ("a\\*", "a*", True),
            ("a\\*", "ab", False),
            ("[", "[", True),
            ("{a", "{a", True),
            # Files end no path in a slash.
            ("a/", "a", False),
            ("/", "a", False),
            # Names are bytes, lines mean nothing.
            ("*", "new\nline", True),
            ("\udcff*", "\udcff.bin", True),
            ("a", "a\n", False),
            ("*.PY", "a.py", False),
        ],
    )
    def test_table(self, pattern, path, matches):
        assert compile_glob(pattern).matches(path) is matches

    @for_each("pattern", ["..", "../x", "a/../b", "a/..", "/.."])
    def test_a_segment_that_climbs_is_refused(self, pattern):
        with pytest.raises(GlobError, match=r"'\.\.' segment"):
            compile_glob(pattern)

    @for_each("pattern", ["a..b", "...", "..a/b", "{1..2}/a"])
    def test_two_dots_in_a_name_are_a_name(self, pattern):
        compile_glob(pattern)

    @pytest.mark.parametrize("pattern", ["", "{1..5000}", "{a,b}" * 12])
    def test_what_is_empty_or_too_much_is_refused(self, pattern):
        with pytest.raises(GlobError):
            compile_glob(pattern)

    def test_a_matcher_is_made_once(self):
        assert compile_glob("*.once") is compile_glob("*.once")


class TestAnyPattern:
    @relaxed
    @given(st.text(alphabet="ab/.*?[]{},!\\-(^", max_size=12), PATHS)
    def test_any_pattern_is_used_or_refused_and_never_skips_too_much(self, pattern, names):
        """`prefix` and `depth` let a walk skip directories: nothing that matches may lie there."""
        try:
            matcher = compile_glob(pattern)
        except GlobError:
            return
        if matcher.matches("/".join(names)):
            assert tuple(names[: len(matcher.prefix)]) == matcher.prefix
            assert len(names) > len(matcher.prefix)
            assert matcher.depth is None or len(names) <= matcher.depth

    @settings(max_examples=examples(150), deadline=None)
    @given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join), ODD_PATHS)
    def test_a_path_matches_as_it_would_as_a_whole(self, pattern, names):
        """wcmatch's own regular expression of the whole pattern: right, but not linear."""
        try:
            matcher = compile_glob(pattern)
        except GlobError:
            return
        assert matcher.matches("/".join(names)) is matches_as_a_whole(pattern, "/".join(names))

    @for_each(
        ("pattern", "prefix", "depth"),
        [
            ("*.py", (), None),
            ("src/lib/*.py", ("src", "lib"), 3),
            ("/a.py", (), 1),
            ("src/**/x/*.py", ("src",), None),
            ("src/l?b/x", ("src",), 3),
            ("{a,b/c}/x", (), None),
            ("a\\b/c/d", (), 3),
            (".ci/x", (".ci",), 2),
        ],
    )
    def test_what_a_walk_can_skip(self, pattern, prefix, depth):
        matcher = compile_glob(pattern)
        assert (matcher.prefix, matcher.depth) == (prefix, depth)


class TestHostilePatterns:
    """Time is linear in the path, whatever the pattern. As one regular expression, most of these would run for years
    with Python's lock held: a run of this file that does not end, ended by pytest's limit, is how that shows."""

    LIMIT_S = 2.0
    """Of the processor; each takes some milliseconds."""

    @pytest.mark.alone
    @pytest.mark.parametrize(
        ("pattern", "path"),
        [
            ("**/a/" * 200 + "b", "a/" * 2000 + "c"),
            ("**/" * 200 + "b", "a/" * 2000 + "c"),
            ("**/*a*/" * 200 + "b", "a/" * 2000 + "c"),
            ("**/" + "*a/" * 700 + "b", "aa/" * 2000 + "c"),
            ("{a,**}/" * 9 + "b", "a/" * 2000 + "c"),
            ("*a" * 2000 + "b", "a" * 4000),
            ("*a*" * 1000 + "b", "a" * 4000),
            ("*?" * 2000 + "b", "a" * 4000),
            ("*[ab]" * 800 + "c", "ab" * 2000),
            ("[ab]*" * 800 + "c", "ab" * 2000),
            ("?*" * 2000 + "b", "a" * 4000),
            ("*" * 4000 + "b", "a" * 4000),
            ("*{a,b}" * 8 + "c", "ab" * 2000),
            ("*[!b]*" * 600 + "b", "a" * 4000),
            ("*a*/" * 800 + "b", ("a" * 200 + "/") * 800 + "c"),
        ],
    )
    def test_no_pattern_takes_long(self, pattern, path):
        begun = time.thread_time()
        assert not compile_glob(pattern).matches(path)
        assert time.thread_time() - begun < self.LIMIT_S

    @pytest.mark.alone
    @pytest.mark.parametrize(
        "pattern",
        [
            "{a,b}" * 800,
            "{" * 2000 + "a,b" + "}" * 2000,
            "{a," * 1000 + "b" + "}" * 1000,
            "{1..99999999999}",
            "{1..9}" * 600,
        ],
    )
    def test_braces_are_bounded(self, pattern):
        begun = time.thread_time()
        with pytest.raises(GlobError):
            compile_glob(pattern)
        assert time.thread_time() - begun < self.LIMIT_S

    def test_alternatives_are_bounded_in_length(self):
        with pytest.raises(GlobError, match="32768 characters"):
            compile_glob("x" * 100 + "{1..500}")

    def test_a_pattern_is_no_longer_than_a_path(self):
        compile_glob("a" * 4096)
        with pytest.raises(GlobError, match="longer than 4096"):
            compile_glob("a" * 4097)

    def test_what_a_matcher_remembers_is_bounded(self):
        matcher = compile_glob("**/*a*/*.py")
        assert not any(matcher.matches(f"dir{number}/x") for number in range(20_000))
        assert len(matcher._kept) <= globs.KEPT_NAMES
