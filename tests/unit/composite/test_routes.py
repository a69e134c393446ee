"""The route table: the rules about prefixes, as a pure table."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.base.paths import AgentPath, PathError, is_below, normalise, parent_and_name
from fusebackend.composite.route_table import RouteTable


def test_prefixes_are_normalised_and_ordered_longest_first():
    table = RouteTable(["memories", "/memories/user/", "/a"])
    assert table.prefixes == ("/memories/user", "/memories", "/a")


@for_each("prefix", ["", "/", "//", "/a//b/", "/a/../b", "/./a", "~/x", "/a\0b", "//a"])
def test_a_prefix_that_names_no_plain_directory_is_refused(prefix):
    with pytest.raises(PathError) as refusal:
        RouteTable([prefix])
    assert "\n" not in str(refusal.value)


def test_prefixes_that_mean_the_same_are_refused_and_both_named():
    with pytest.raises(PathError, match=r"'memories' and '/memories/' mean the same directory '/memories/'"):
        RouteTable(["memories", "/memories/"])


@for_each(
    ("path", "expected"),
    [
        ("/", (None, "/")),
        ("/x", (None, "/x")),
        ("/memories", ("/memories", "/")),
        ("/memories/a/b", ("/memories", "/a/b")),
        ("/memories2/x", (None, "/memories2/x")),
        ("/memories/user", ("/memories/user", "/")),
        ("/memories/user/profile.txt", ("/memories/user", "/profile.txt")),
        ("/memories/username", ("/memories", "/username")),
        ("/deep", (None, "/deep")),
        ("/deep/er/f", ("/deep/er", "/f")),
    ],
)
def test_longest_prefix_first_by_whole_segments(path, expected):
    assert RouteTable(["/memories/", "/memories/user/", "/deep/er/"]).route(AgentPath(path)) == expected


def test_names_in_a_directory_are_its_routes_and_the_ways_to_deeper_ones():
    table = RouteTable(["/a/b", "/a", "/x/y/z"])
    assert table.names_below(AgentPath("/")) == ("a", "x")
    assert table.names_below(AgentPath("/a")) == ("b",)
    assert table.names_below(AgentPath("/x/y")) == ("z",)
    assert table.names_below(AgentPath("/x/y/z")) == ()
    assert table.names_below(AgentPath("/elsewhere")) == ()


def test_prefixes_below_are_strictly_below_at_any_depth():
    table = RouteTable(["/a/b", "/a", "/x/y/z", "/ab"])
    assert table.prefixes_below(AgentPath("/")) == ("/a", "/a/b", "/ab", "/x/y/z")
    assert table.prefixes_below(AgentPath("/a")) == ("/a/b",)
    assert table.prefixes_below(AgentPath("/x")) == ("/x/y/z",)
    assert table.prefixes_below(AgentPath("/a/b")) == ()


def test_what_routes_need_as_directories_is_pinned_and_covers_files():
    table = RouteTable(["/a/b"])
    for path in ("/", "/a", "/a/b"):
        assert table.pinned(AgentPath(path))
    assert not table.pinned(AgentPath("/a/c"))
    assert table.covers(None, AgentPath("/a"))  # a file of that name can't be seen: the way to the route is a directory
    assert table.covers(None, AgentPath("/a/b/file"))
    assert not table.covers(None, AgentPath("/a/c"))
    assert not table.covers(AgentPath("/a/b"), AgentPath("/a/b/file"))


segments = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=4)
directories = segments.map(lambda names: "/" + "/".join(names))


@given(st.lists(directories, max_size=6, unique=True), directories)
def test_route_agrees_with_the_definition_and_outer_undoes_it(prefixes, text):
    table, path = RouteTable(prefixes), normalise(text)
    holding = [prefix for prefix in prefixes if is_below(path, prefix)]
    prefix, inner = table.route(path)
    assert prefix == (max(holding, key=len) if holding else None)
    assert table.outer(prefix, inner) == path
    assert normalise(inner) == inner


@given(st.lists(directories, max_size=6, unique=True), directories)
def test_every_prefix_is_found_by_walking_down_names(prefixes, text):
    table = RouteTable(prefixes)
    for prefix in prefixes:
        directory = normalise(prefix)
        while directory != "/":
            directory, name = parent_and_name(directory)
            assert name in table.names_below(directory)
    assert table.pinned(normalise(text)) == any(is_below(prefix, text) for prefix in prefixes)
