"""The one set of glob rules, as a table and against a naive matcher."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebackend.globs import GlobError, compile_glob

relaxed = settings(deadline=None)

SEGMENTS = st.text(alphabet="ab.", min_size=1, max_size=4).filter(lambda segment: segment not in (".", ".."))
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4)
PATTERN_SEGMENTS = st.one_of(
    st.text(alphabet="ab.*?", min_size=1, max_size=4).filter(lambda s: s not in (".", "..") and "**" not in s),
    st.just("**"),
)


def segment_matches(pattern, name):
    """`*` and `?` in one segment, by trying all ways."""
    if name.startswith(".") and not pattern.startswith("."):
        return False
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(bare_matches(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    return bare_matches(pattern, name)


def bare_matches(pattern, name):
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(bare_matches(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and bare_matches(pattern[1:], name[1:])


def path_matches(patterns, names):
    if not patterns:
        return not names
    if patterns[0] == "**":
        if len(patterns) == 1:
            return bool(names) and not any(name.startswith(".") for name in names)
        return path_matches(patterns[1:], names) or (
            bool(names) and not names[0].startswith(".") and path_matches(patterns, names[1:])
        )
    return bool(names) and segment_matches(patterns[0], names[0]) and path_matches(patterns[1:], names[1:])


class TestRules:
    @pytest.mark.parametrize(
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

    @pytest.mark.parametrize("pattern", ["..", "../x", "a/../b", "a/..", "/.."])
    def test_a_segment_that_climbs_is_refused(self, pattern):
        with pytest.raises(GlobError, match=r"'\.\.' segment"):
            compile_glob(pattern)

    @pytest.mark.parametrize("pattern", ["a..b", "...", "..a/b", "{1..2}/a"])
    def test_two_dots_in_a_name_are_a_name(self, pattern):
        compile_glob(pattern)

    @pytest.mark.parametrize("pattern", ["", "{1..5000}", "{a,b}" * 12])
    def test_what_is_empty_or_too_much_is_refused(self, pattern):
        with pytest.raises(GlobError):
            compile_glob(pattern)

    def test_a_matcher_is_made_once(self):
        assert compile_glob("*.once") is compile_glob("*.once")


class TestAgainstTheModel:
    @relaxed
    @given(st.lists(PATTERN_SEGMENTS, min_size=2, max_size=4), PATHS)
    def test_paths(self, patterns, names):
        assert compile_glob("/".join(patterns)).matches("/".join(names)) is path_matches(patterns, names)

    @relaxed
    @given(PATTERN_SEGMENTS.filter(lambda segment: segment != "**"), PATHS)
    def test_names(self, pattern, names):
        assert compile_glob(pattern).matches("/".join(names)) is segment_matches(pattern, names[-1])

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

    @pytest.mark.parametrize(
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
