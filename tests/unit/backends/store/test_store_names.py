"""Where the keys of a store are: nothing hidden, nothing twice, and what is listed can be opened."""

from __future__ import annotations

import json

import pytest
import stores
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from profiles import examples
from stored import put_if, put_new

from fusebackend.backends import StoreBackend
from fusebackend.remote.keyed import KeyList, is_name

FILE = {"content": "text", "encoding": "utf-8"}

SEGMENTS = st.sampled_from(
    ["", "", "a", "b", "a", ".", "..", "%", "%.", "%=", "a%=", "a.json", "a%=.json", "a.md", "a%=.md", "%2E", "%2F",
     "n" * 255, "n" * 300, "漢" * 90, "x.json", "0", "é"]
)  # fmt: skip
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
TREES = st.dictionaries(KEYS, st.sampled_from(["file", "value", "text"]), max_size=12)
"""Keys, and what their values are: files, others, and others with one long text."""

LONG = "one\ntwo\n"


def filled(store, namespace, keys):
    for key, kind in keys.items():
        value = {"file": {**FILE, "content": key}, "value": {"value": key[:50]}, "text": {"v": 1, "text": LONG + key}}
        store.put(namespace, key, value[kind])


def backend_of(keys):
    """A store in memory with these keys, and a backend over it."""
    store = InMemoryStore()
    filled(store, ("n",), keys)
    return store, StoreBackend(store, namespace=("n",))


def everything(backend):
    """All files, by listing directory after directory, with their bytes."""
    found = {}
    left = ["/"]
    while left:
        for info in backend.ls(left.pop()).entries:
            if info.get("is_dir"):
                left.append(info["path"])
            else:
                (answer,) = backend.download_files([info["path"]])
                assert answer.error is None, (info, answer.error)
                assert info["path"] not in found
                assert info["size"] == len(answer.content)
                found[info["path"]] = answer.content
    return found


def shown(key, kind):
    """What a key is shown as: the contents of its files, and whether they can be read only."""
    if kind == "file":
        return [(key.encode(), False)]
    value = {"value": key[:50]} if kind == "value" else {"text": LONG + key, "v": 1}
    texts = [LONG + key] if kind == "text" else []
    return [(text.encode(), True) for text in (json.dumps(value, indent=2, ensure_ascii=False) + "\n", *texts)]


def check(backend, keys):
    found = everything(backend)
    entries = {info["path"]: info for info in backend.glob("**").matches}
    assert sorted(entries) == sorted(
        path for path in found if not any(name.startswith(".") for name in path.split("/"))
    )
    assert sorted(found.values()) == sorted(content for item in keys.items() for content, _ in shown(*item))
    for path, info in entries.items():
        assert info.get("read_only", False) == (found[path].startswith((b"{", b"one")))
    for key, kind in keys.items():
        plain = key.startswith("/") and all(map(is_name, key[1:].split("/")))
        if plain and kind == "file" and not any(other.startswith((key + "/", key[1:] + "/")) for other in keys):
            assert found[key] == key.encode()
    assert {match["path"] for match in backend.grep("").matches} <= found.keys()


@settings(deadline=None)
@given(TREES)
def test_every_key_is_shown_once_and_can_be_read(keys):
    check(backend_of(keys)[1], keys)


@pytest.mark.parametrize("kind", stores.SQL_KINDS)
@settings(max_examples=examples(12))
@given(keys=TREES)
def test_the_rule_is_the_same_in_sql(store_of, kind, keys):
    keys = {key: what for key, what in keys.items() if kind != "postgres" or len(key) < 600}
    store, namespace = store_of(kind)
    with StoreBackend(store, namespace=namespace) as backend:
        filled(store, namespace, keys)
        same = InMemoryStore()
        filled(same, namespace, keys)
        assert everything(backend) == everything(StoreBackend(same, namespace=namespace))


@for_each(
    ("keys", "paths"),
    [
        (["//x"], ["/%/x"]),
        (["/a/"], ["/a/%"]),
        (["a"], ["/a"]),
        (["", "/"], ["/%", "/%%="]),
        (["a", "/a"], ["/a", "/a%="]),
        (["/a", "/a/b"], ["/a%=", "/a/b"]),
        (["a", "/a", "/a/b"], ["/a%=", "/a%=%", "/a/b"]),
        (["/..", "/a/../b", "/./c"], ["/%2E%2E", "/%2E/c", "/a/%2E%2E/b"]),
        (["/%", "//x", "/%/x"], ["/%%=%", "/%%=/x", "/%/x"]),
        (["/a%=", "/a", "/a/b"], ["/a%=", "/a%=%", "/a/b"]),
        (["{x}"], ["/{x}"]),
    ],
)
def test_where_a_file_is(keys, paths):
    _, backend = backend_of(dict.fromkeys(keys, "file"))
    assert sorted(everything(backend)) == sorted(paths)


@for_each(
    ("files", "values", "paths"),
    [
        ([], ["prefs"], ["/prefs.json"]),
        ([], ["/prefs", "user/1"], ["/prefs.json", "/user/1.json"]),
        (["/x.json"], ["/x"], ["/x.json", "/x%=.json"]),
        (["/x.json/y"], ["/x"], ["/x.json/y", "/x%=.json"]),
        (["/x.json", "/x%=.json"], ["/x"], ["/x.json", "/x%=.json", "/x%=%.json"]),
        ([], ["/x", "/x.json"], ["/x.json", "/x.json.json"]),
        (["/x/y"], ["/x"], ["/x.json", "/x/y"]),
        (["/x"], ["x"], ["/x", "/x.json"]),
        ([], ["/n" + "n" * 254], [f"/{'n' * 228}%~"]),
    ],
)
def test_where_a_value_is_that_is_no_file(files, values, paths):
    _, backend = backend_of({**dict.fromkeys(files, "file"), **dict.fromkeys(values, "value")})
    listed = sorted(everything(backend))
    for path, expected in zip(listed, sorted(paths), strict=True):
        assert path == expected or (expected.endswith("%~") and path.startswith(expected) and path.endswith(".json"))


@for_each(
    ("files", "texts", "paths"),
    [
        ([], ["notes"], ["/notes.json", "/notes.md"]),
        ([], ["notes.md"], ["/notes.md.json", "/notes.md.md"]),
        (["/notes.md"], ["/notes"], ["/notes.json", "/notes.md", "/notes%=.md"]),
        (["notes.md"], ["/notes"], ["/notes.json", "/notes.md", "/notes%=.md"]),
        (["/notes.md/x"], ["/notes"], ["/notes.json", "/notes.md/x", "/notes%=.md"]),
        ([], ["/notes", "/notes.md"], ["/notes.json", "/notes.md", "/notes.md.json", "/notes.md.md"]),
        ([], ["", "/."], ["/%.json", "/%.md", "/%2E.json", "/%2E.md"]),
        (["/.md", "/..md"], ["/", "/."], ["/%.json", "/%.md", "/%2E.json", "/%2E.md", "/..md", "/.md"]),
        (["/%.md"], ["/"], ["/%.json", "/%.md", "/%%=.md"]),
        ([], ["/a/../b"], ["/a/%2E%2E/b.json", "/a/%2E%2E/b.md"]),
        ([], ["/\x1b[31m\n"], ["/\x1b[31m\n.json", "/\x1b[31m\n.md"]),
    ],
)
def test_where_a_long_text_is(files, texts, paths):
    _, backend = backend_of({**dict.fromkeys(files, "file"), **dict.fromkeys(texts, "text")})
    found = everything(backend)
    assert sorted(found) == sorted(paths)
    computed = [path for path in paths if path.endswith(".md") and path not in files and path[1:] not in files]
    assert sorted(match["path"] for match in backend.grep("two").matches) == sorted(
        [*computed, *(path for path in paths if path.endswith(".json"))]
    )
    assert sorted(info["path"] for info in backend.glob("**/*.md").matches) == sorted(
        path for path in paths if path.endswith(".md") and not path.startswith("/.")
    )


def test_a_key_without_a_slash_is_written_and_deleted_where_it_is():
    store, backend = backend_of(dict.fromkeys(["a", "b/c", "/d", "d"], "file"))

    def contents():
        return {item.key: item.value["content"] for item in store.search(("n",))}

    assert backend.edit("/a", "a", "A").error is None
    assert backend.edit("/d%=", "d", "D").error is None
    assert backend.move("/b", "/e").error is None
    assert contents() == {"a": "A", "d": "D", "/d": "/d", "/e/c": "b/c"}
    assert backend.delete("/d%=").error is None
    assert contents() == {"a": "A", "/d": "/d", "/e/c": "b/c"}


def test_a_file_in_a_directory_with_an_escaped_name_gets_its_keys_prefix():
    store, backend = backend_of({"//x": "file"})
    assert backend.write("/%/y", "new").error is None
    assert sorted(item.key for item in store.search(("n",))) == ["//x", "//y"]
    assert sorted(everything(backend)) == ["/%/x", "/%/y"]


def test_a_file_that_is_a_directory_too_is_read_by_its_key_as_deepagents_does():
    store, backend = backend_of({"/a": "file", "/a/b": "file"})
    assert backend.download_files(["/a", "/a%="])[0].content == b"/a"
    assert backend.edit("/a", "/a", "changed").error is None
    assert store.get(("n",), "/a").value["content"] == "changed"
    assert backend.delete("/a").error is None  # the directory
    assert [item.key for item in store.search(("n",))] == ["/a"]
    assert [info["path"] for info in backend.ls("/").entries] == ["/a"]


@pytest.mark.parametrize("path", ["/x/y", "/x.json"])
def test_what_would_put_a_file_in_the_way_of_a_value_is_said(path):
    """A new file never takes a value's key; where it takes its name, the value gives way."""
    store, backend = backend_of({"/x": "value"})
    if path == "/x.json":
        assert backend.upload_files([(path, b"new")])[0].error == "permission_denied"
    else:
        assert backend.upload_files([(path, b"new")])[0].error is None
        assert sorted(everything(backend)) == ["/x.json", "/x/y"]
    assert backend.upload_files([("/x", b"new")])[0].error in ("permission_denied", "is_directory")
    assert store.get(("n",), "/x").value == {"value": "/x"}


@given(st.lists(KEYS, unique=True), st.lists(SEGMENTS, max_size=3))
def test_a_level_is_what_sorting_out_all_keys_would_give(keys, directory):
    for prefix in ("/" + "".join(f"{segment}/" for segment in directory), "".join(f"{s}/" for s in directory)):
        listed = KeyList(keys)
        below = {key for key in keys if (key.startswith(prefix) if prefix else not key.startswith("/"))}
        assert set(listed.below(prefix)) == below
        assert listed.any_below(prefix) == bool(below)
        tops = {key[len(prefix) :].partition("/")[:2] for key in below}
        found = [key[len(prefix) :].partition("/")[:2] for key in listed.level(prefix)]
        assert sorted(found) == sorted(tops)


PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "a.json", "a.md", "%2E", "a%=", "é"]), min_size=1, max_size=3).map(
        lambda parts: "/" + "/".join(parts)
    ),
    min_size=1,
    max_size=6,
    unique=True,
)


@pytest.mark.parametrize("kind", stores.KINDS)
@settings(max_examples=examples(12))
@given(keys=TREES, wanted=PATHS)
def test_new_files_are_made_together_where_each_could_be_made_alone(store_of, kind, keys, wanted):
    """All of them, or none: also where a value of the store, a directory, or a name that gave way is at one."""
    keys = {key: what for key, what in keys.items() if kind == "memory" or "\0" not in key}
    store, namespace = store_of(kind)
    backend = StoreBackend(store, namespace=namespace)
    filled(store, namespace, keys)
    before = everything(backend)
    apart = any(path.startswith(other + "/") for path in wanted for other in wanted)
    _, alone = store_of(kind)
    one_by_one = StoreBackend(store, namespace=alone)
    filled(store, alone, keys)
    able = not apart and all(put_if(one_by_one, path, path.encode(), None) is None for path in wanted)
    error = put_new(backend, [(path, path.encode()) for path in wanted])
    if able:
        assert error is None
        assert everything(backend) == everything(one_by_one)
    else:
        assert error is not None
        assert everything(backend) == before
