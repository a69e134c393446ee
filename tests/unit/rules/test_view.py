"""Decisions of a `View`, against a reference that shares nothing with it."""

import functools
import random
import re
from dataclasses import dataclass

import pytest
from for_each import for_each
from profiles import amount

from fusebackend.rules.rule import Rule, RuleError, within
from fusebackend.rules.view import View

# -- the reference ---------------------------------------------------------------------------------------------


def alternatives(glob: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", glob)
    if found is None:
        return [glob]
    ends = glob[: found.start()], glob[found.end() :]
    return [each for part in found[1].split(",") for each in alternatives(ends[0] + part + ends[1])]


def name_matches(glob: str, name: str, dots: bool) -> bool:
    if not glob:
        return not name
    if glob[0] == "*":
        return any(name_matches(glob[1:], name[cut:], dots) for cut in range(len(name) + 1))
    return bool(name) and glob[0] in ("?", name[0]) and name_matches(glob[1:], name[1:], dots)


def segments_match(glob: list[str], names: list[str], dots: bool) -> bool:
    if not glob:
        return not names
    hidden = bool(names) and names[0].startswith(".") and not dots
    if glob[0] == "**":
        if len(glob) == 1:
            return bool(names) and all(dots or not name.startswith(".") for name in names)
        if segments_match(glob[1:], names, dots):
            return True
        return bool(names) and not hidden and segments_match(glob, names[1:], dots)
    if not names or (hidden and glob[0][:1] in "*?"):
        return False
    return name_matches(glob[0], names[0], dots) and segments_match(glob[1:], names[1:], dots)


def reference(rules, operation: str, path: str) -> str:
    @functools.cache
    def first(operation: str, path: str) -> str:
        names = [name for name in path.split("/") if name]
        for operations, globs, mode, dots in rules:
            for glob in (each for said in globs for each in alternatives(said)):
                if path == "/":
                    if operation in operations and glob == "/**":
                        return mode
                elif operation in operations and segments_match(
                    [part for part in glob.split("/") if part], names, dots
                ):
                    return mode
        return "allow"

    ways = ["/".join(path.split("/")[:end]) or "/" for end in range(1, len(path.split("/")) + 1)]
    if any(first("read", way) == "hide" for way in ways):
        return "hide"
    found = {"hide": "deny"}.get(first(operation, path)) or first(operation, path)
    return "allow" if (operation, found) == ("read", "append") else found


# -- tests -----------------------------------------------------------------------------------------------------

NAMES = [
    "a",
    "b",
    "ab",
    ".env",
    ".git",
    "x.py",
    "Secret",
    "secret",
    "ü",
    "a b",
    "a\nb",
    "a\n",
    ".\n",
    "..\n",
    "a*b",
    "\udcff",
]
PARTS = ["a", "b", "*", "?", "*.py", ".env", ".*", "{a,b}", "{a,.e}*", "**", "secret", "s*t", "a?"]


def a_glob(chance: random.Random) -> str:
    parts = [chance.choice(PARTS) for _ in range(chance.randint(1, 3))]
    return "/" + "/".join(part for at, part in enumerate(parts) if part != "**" or parts[at - 1 : at] != ["**"])


def a_path(chance: random.Random) -> str:
    return "/" + "/".join(chance.choice(NAMES) for _ in range(chance.randint(0, 4)))


def rules_of(chance: random.Random) -> list[tuple[tuple[str, ...], tuple[str, ...], str, bool]]:
    made = []
    for _ in range(chance.randint(1, 5)):
        mode = chance.choice(["allow", "deny", "interrupt", "hide", "append"])
        operations = {"hide": ("read", "write"), "append": ("write",)}.get(mode) or chance.choice(
            [("read",), ("write",), ("read", "write")]
        )
        globs = tuple(a_glob(chance) for _ in range(chance.randint(1, 3)))
        if mode != "hide" or all(glob != "/**" for glob in globs):
            made.append((operations, globs, mode, chance.random() < 0.8))
    return made


@for_each("seed", range(amount("FUSEBACKEND_VIEW_SEEDS", day=2, night=20)))
def test_random_decisions_are_those_of_the_reference(seed):
    chance = random.Random(seed)
    for _ in range(25):
        rules = rules_of(chance)
        view = View("v", [Rule(*each) for each in rules])
        for _ in range(200):
            operation, path = chance.choice(["read", "write"]), a_path(chance)
            expected = reference(rules, operation, path)
            assert view.decide(operation, path) == expected, (rules, operation, path)
            assert view.decide(operation, path) == expected, "once more, from the cache"
            if chance.random() < 0.1:
                assert view.explain(operation, path)[0] == expected


@for_each("seed", range(4))
def test_a_tree_that_is_the_same_below_two_names_has_the_same_decisions(seed):
    chance = random.Random(seed)
    compared = 0
    for _ in range(60):
        rules = rules_of(chance)[:3]
        view = View("v", [Rule(*each) for each in rules])
        for _ in range(100):
            old, new, inner = a_path(chance), a_path(chance), a_path(chance)
            if inner == "/" or "/" in (old, new) or not view.is_same_below(old, new):
                continue
            if view.decide("read", old) != view.decide("read", new):
                continue  # a directory changes itself, which is asked for apart
            compared += 1
            for operation in ("read", "write"):
                same = view.decide(operation, old + inner) == view.decide(operation, new + inner)
                assert same, (rules, old, new, inner)
    assert compared > 20


def test_hidden_is_all_that_lies_below_whatever_later_and_earlier_rules_say():
    view = View(
        "v",
        [
            {"operations": ["read"], "paths": ["/a/b/c"], "mode": "allow"},
            {"operations": ["read", "write"], "paths": ["/a/b"], "mode": "hide"},
        ],
    )
    assert view.decide("read", "/a/b/c") == view.decide("write", "/a/b/c/d") == "hide"
    assert view.explain("write", "/a/b/c/d") == ("hide", 2, "/a/b")


def test_permissions_of_deepagents_are_taken_as_they_are_and_never_looser():
    deepagents = pytest.importorskip("deepagents.middleware.filesystem")
    chance = random.Random(5)
    looser = {"allow": 0, "interrupt": 1, "deny": 2}
    same = 0
    for _ in range(150):
        given = [
            deepagents.FilesystemPermission(
                operations=chance.choice([["read"], ["write"], ["read", "write"]]),
                paths=[a_glob(chance)],
                mode=chance.choice(["allow", "deny"]),
            )
            for _ in range(chance.randint(1, 5))
        ]
        view = View("v", given)
        for _ in range(30):
            operation, path = chance.choice(["read", "write"]), a_path(chance)
            theirs, ours = deepagents._check_fs_permission(given, operation, path), view.decide(operation, path)
            assert looser[ours] >= looser[theirs], (given, operation, path)
            assert ours == theirs or "/." in path
            same += ours == theirs
    assert same > 4000


@dataclass
class Odd:
    operations: object = ("read",)
    paths: object = ("/a",)
    mode: object = "deny"


@for_each(
    ("rule", "says"),
    [
        ({"operations": ["read"], "paths": ["a"]}, "rule 1: path 'a' does not begin with '/'"),
        ({"operations": ["read"], "paths": ["/a/"]}, "write '/a/**' for all that is below it"),
        ({"operations": ["read"], "paths": ["/a/../b"]}, "is not plain"),
        ({"operations": ["read"], "paths": ["/~/b"]}, "is not plain"),
        ({"operations": ["read"], "paths": ["//b"]}, "is not plain"),
        ({"operations": ["look"], "paths": ["/a"]}, "operation 'look' is none of read, write"),
        ({"operations": ["read"], "paths": ["/a"], "mode": "ask"}, "mode 'ask' is none of allow, deny"),
        ({"operations": [], "paths": ["/a"]}, "has no operations"),
        ({"operations": ["read"], "paths": []}, "has no paths"),
        ({"operations": ["read"]}, "rule 1: paths is missing"),
        ({"operations": "read", "paths": ["/a"]}, "rule 1: 'operations': expected a list, got a text"),
        ({"operations": ["read"], "paths": [7]}, "rule 1: 'paths[1]': expected a text, got a whole number"),
        ({"operations": ["write"], "paths": ["/a"], "mode": "hide"}, "a rule to hide is about reading"),
        ({"operations": ["read"], "paths": ["/a"], "mode": "append"}, "a rule to append is about writing"),
        ({"operations": ["write", "execute"], "paths": ["/a"], "mode": "append"}, "a rule to append is about files"),
        ({"operations": ["read"], "paths": ["/a"], "path": []}, "unknown key 'path'"),
        ({"operations": ["read"], "paths": ["/a"], "mod": None}, "unknown key 'mod'"),
        ({"operations": ["read"], "paths": ["/**"], "mode": "hide"}, "rule 1: it hides '/'"),
        ({"operations": ["read"], "paths": ["/" + "{a,b}" * 11]}, "is no glob"),
        (Odd(mode="ask"), "mode 'ask' is none of"),
        (7, "a int is no rule"),
    ],
)
def test_an_invalid_rule_says_which_one_and_why_in_a_line(rule, says):
    with pytest.raises(RuleError) as caught:
        View("v", [rule])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_globs_of_a_route_are_those_of_its_root():
    rule = within(["**/.env", "/top"])
    assert rule.matches("/.env")
    assert rule.matches("/a/b/.env")
    assert rule.matches("/top")
    assert not rule.matches("/a/top")
    with pytest.raises(RuleError, match="hides the whole route"):
        within(["**"])


def test_what_is_without_is_hidden_by_no_rule():
    plain = View("v", [{"operations": ["write"], "paths": ["/a"], "mode": "deny"}])
    view = plain.without("/.own")
    assert [view.decide("read", path) for path in ("/.own", "/.own/x", "/.owned", "/a")] == [
        "hide", "hide", "allow", "allow"
    ]  # fmt: skip
    assert view.decide("write", "/a") == "deny"
    assert not view.hides
    assert plain.decide("read", "/.own") == plain.without(None).decide("read", "/.own") == "allow"


def test_an_approval_is_for_its_paths_and_the_way_to_them():
    rules = [{"operations": ["write"], "paths": ["/p", "/p/**"], "mode": "interrupt"}]
    rules.insert(0, {"operations": ["write"], "paths": ["/p/no/**"], "mode": "deny"})
    view = View("v", rules)
    asked = ("/", "/p", "/p/d", "/p/d/a", "/p/d/a/below", "/p/d/b", "/p/da", "/p/no/x")
    alone, trees = (view.granting([path], trees=trees) for path, trees in (("/p/d/a", False), ("/p/d", True)))
    allow, ask = "allow", "interrupt"
    assert [alone.decide("write", path) for path in asked] == [allow, allow, allow, allow, ask, ask, ask, "deny"]
    assert [trees.decide("write", path) for path in asked] == [allow, allow, allow, allow, allow, allow, ask, "deny"]
    assert [view.decide("write", path) for path in asked] == [allow, *[ask] * 6, "deny"]


@pytest.mark.parametrize("seed", range(2))
def test_a_name_that_no_rule_matches_is_allowed_by_the_reference(seed):
    chance = random.Random(seed)
    passed = asked = 0
    for _ in range(25):
        rules = rules_of(chance)
        view = View("v", [Rule(*each) for each in rules])
        for _ in range(80):
            directory, name = a_path(chance), chance.choice(NAMES)
            if reference(rules, "read", directory) == "hide":
                continue  # nobody lists it
            may_match = view.ruled_names(directory)
            asked += 1
            if may_match is None or not may_match(name):
                passed += 1
                path = f"{directory.rstrip('/')}/{name}"
                for operation in ("read", "write"):
                    assert reference(rules, operation, path) == "allow", (rules, operation, path)
    assert passed > asked // 4, "it spares decisions"


def test_a_quoted_character_may_match_all_that_lies_below():
    view = View("v", [{"operations": ["read"], "paths": [r"/a/b\*", r"/c,d}/\{x"], "mode": "deny"}])
    for path in ("/a/b*", "/c,d}/{x"):
        assert view.decide("read", path) == "deny"
    assert view.ruled_names("/a")("b*") and view.ruled_names("/e") is None


def test_the_servers_name_is_ruled_where_it_is_absent():
    view = View("v", []).without("/.fusebackend")
    assert view.ruled_names("/")(".fusebackend") and view.ruled_names("/a") is None
