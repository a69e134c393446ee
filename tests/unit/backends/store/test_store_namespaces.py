"""`StoreBackend.tree`: a whole store, each of its namespaces a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stores
from agentface import names
from eventually import eventually
from nodes import ME
from nodes import put as put_file
from stored import put_new

from fusebackend.backends import StoreBackend
from fusebackend.protocol import ROOT_NODE
from fusebackend.protocol.scheme import UrlError
from fusebackend.remote.volume import ForeignVolume
from fusebackend.testing.posix.case import refused
from fusebackend.text import encode_file_data
from fusebackend.urls import open_backend


@pytest.fixture
def tree(store: Any) -> Iterator[StoreBackend]:
    with StoreBackend.tree(store) as backend:
        yield backend


def put(store: Any, namespace: tuple[str, ...], key: str, text: str) -> None:
    store.put(namespace, key, dict(encode_file_data(text.encode())))


def fill(store: Any, contents: dict[tuple[tuple[str, ...], str], str]) -> None:
    for (namespace, key), text in contents.items():
        put(store, namespace, key, text)


def files(tree: StoreBackend) -> dict[str, bytes | None]:
    result = tree.glob("**/*")
    assert result.error is None
    names = [info["path"] for info in result.matches or ()]
    hidden = [info["path"] for info in tree.glob("{*,.*}").matches or ()]
    return {answer.path: answer.content for answer in tree.download_files(sorted({*names, *hidden}))}


def items(store: Any, namespace: tuple[str, ...]) -> dict[str, Any]:
    return {item.key: item.value["content"] for item in store.search(namespace) if item.namespace == namespace}


def test_namespaces_are_directories_and_keys_are_files(store: Any, tree: StoreBackend) -> None:
    fill(
        store,
        {
            (("users", "ada"), "/notes.md"): "of ada",
            (("users", "ada"), "/deep/er.md"): "deep",
            (("users",), "all.md"): "of all",
            (("other", "in", "between"), "/x"): "x",
        },
    )
    store.put(("users", "ada"), "settings", {"theme": "dark"})
    assert {path: names(tree, path) for path in ("/", "/users", "/users/ada", "/other/in", "/users/ada/deep")} == {
        "/": ["other", "users"],
        "/users": ["ada", "all.md"],
        "/users/ada": ["deep", "notes.md", "settings.json"],
        "/other/in": ["between"],
        "/users/ada/deep": ["er.md"],
    }
    assert files(tree) == {
        "/other/in/between/x": b"x",
        "/users/ada/deep/er.md": b"deep",
        "/users/ada/notes.md": b"of ada",
        "/users/ada/settings.json": b'{\n  "theme": "dark"\n}\n',
        "/users/all.md": b"of all",
    }
    assert tree.ls("/nobody").error is not None and tree.ls("/users/all.md").error is not None
    downloads = tree.download_files(["/users", "/nobody/x", "/top.md"])
    assert [answer.error for answer in downloads] == ["is_directory", "file_not_found", "file_not_found"]


def test_a_long_text_gives_way_to_a_namespace(store: Any, tree: StoreBackend) -> None:
    text = "one\ntwo\n"
    store.put(("users",), "ada", {"text": text})
    store.put(("users",), "bob", {"text": text})
    put(store, ("users", "ada"), "/x", "x")
    assert names(tree, "/users") == ["ada.json", "ada.md", "ada", "bob.json", "bob.md"]
    put(store, ("users",), "/ada.md", "a file")
    found = files(tree)
    assert sorted(found) == [
        "/users/ada%=.md", "/users/ada.json", "/users/ada.md", "/users/ada/x", "/users/bob.json", "/users/bob.md",
    ]  # fmt: skip
    assert found["/users/ada%=.md"] == found["/users/bob.md"] == text.encode()
    assert {match["path"] for match in tree.grep("two").matches or ()} == {
        "/users/ada%=.md", "/users/ada.json", "/users/bob.json", "/users/bob.md",
    }  # fmt: skip
    assert tree.delete("/users/bob.md").error is not None
    assert tree.move("/users/bob.md", "/users/ada/bob.md").error is not None


def test_a_key_that_is_called_as_a_namespace_gives_way(store: Any, tree: StoreBackend) -> None:
    fill(
        store,
        {
            (("a",), "/b"): "a file",
            (("a", "b"), "/c"): "of the namespace",
            (("d",), "/e/f"): "below a key",
            (("d",), "/e%="): "in its way",
            (("d", "e"), "/f"): "of the namespace",
        },
    )
    expected = {
        "/a/b%=": b"a file",
        "/a/b/c": b"of the namespace",
        "/d/e/f": b"of the namespace",
        "/d/e%=": b"in its way",
        "/d/e%=%/f": b"below a key",
    }
    assert files(tree) == expected
    assert (names(tree, "/a"), names(tree, "/d/e%=%")) == (["b%=", "b"], ["f"])
    assert {match["path"] for match in tree.grep("e").matches or ()} == set(expected) - {"/d/e%="}
    assert [info["path"] for info in tree.glob("e%=%/*", "/d").matches or ()] == ["/d/e%=%/f"]
    assert tree.edit("/d/e%=%/f", "below", "under").error is None
    assert items(store, ("d",))["/e/f"] == "under a key"
    assert tree.delete("/a/b%=").error is None
    assert items(store, ("a",)) == {}
    assert items(store, ("a", "b")) == {"/c": "of the namespace"}


def test_odd_labels_are_escaped(store: Any, tree: StoreBackend) -> None:
    labels = ("a/b", "%", "%2F", "ü" * 200, "x y")
    for label in labels:
        put(store, ("odd", label), "/f", label)
    assert set(files(tree).values()) == {label.encode() for label in labels}
    assert tree.read("/odd/a%2Fb/f").error is None
    assert tree.write("/odd/c%2Fd/g", "new").error is None
    assert items(store, ("odd", "c/d")) == {"/g": "new"}


def test_new_directories_are_namespaces(store: Any, tree: StoreBackend) -> None:
    assert tree.write("/users/bob/deep/n.md", "n").error is None
    assert items(store, ("users", "bob", "deep")) == {"/n.md": "n"}
    put(store, ("users", "ada"), "/keys/old.md", "old")
    assert tree.write("/users/ada/keys/new.md", "new").error is None
    assert tree.write("/users/ada/keys/more/new.md", "more").error is None
    assert items(store, ("users", "ada")) == {
        "/keys/old.md": "old", "/keys/new.md": "new", "/keys/more/new.md": "more",
    }  # fmt: skip
    assert tree.write("/users/ada/v1.0/x.md", "x").error is None
    assert items(store, ("users", "ada"))["/v1.0/x.md"] == "x"
    for path, words in {
        "/top.md": "directory first",
        "/v1.0/x.md": "No namespace can be called 'v1.0'",
        "/langgraph/x.md": "No namespace can be called 'langgraph'",
        "/users/ada/keys/old.md/x": "Not a directory",
        "/users/ada/keys/old.md": "exists",
        "/users/ada": "directory",
    }.items():
        assert words in (tree.write(path, "x").error or ""), path


def test_files_are_moved_between_namespaces(store: Any, tree: StoreBackend) -> None:
    fill(
        store,
        {
            (("a",), "/one.md"): "1",
            (("a",), "/dir/two.md"): "2",
            (("b",), "/three.md"): "3",
        },
    )
    for source, target in (("/a/one.md", "/b/first.md"), ("/a/dir", "/b/moved")):
        assert tree.move(source, target).error is None
    assert items(store, ("a",)) == {}
    assert items(store, ("b",)) == {"/three.md": "3", "/first.md": "1", "/moved/two.md": "2"}
    assert tree.move("/b/three.md", "/b/new/three.md").error is None
    assert items(store, ("b", "new")) == {"/three.md": "3"}
    assert tree.move("/b/moved", "/c").error is None
    assert items(store, ("c",)) == {"/two.md": "2"}
    assert "exists" in (tree.move("/c/two.md", "/b/first.md").error or "")
    assert "not found" in (tree.move("/c/none", "/b/none").error or "")


def test_namespaces_are_renamed_and_deleted_with_all_in_them(store: Any, tree: StoreBackend) -> None:
    fill(
        store,
        {
            (("a", "b"), "/k/x"): "x",
            (("a", "b", "c"), "/y"): "y",
            (("other",), "/z"): "z",
            (("other",), "/keys/z"): "z",
        },
    )
    assert tree.move("/a/b", "/other/moved").error is None
    assert items(store, ("other", "moved")) == {"/k/x": "x"}
    assert items(store, ("other", "moved", "c")) == {"/y": "y"}
    assert tree.move("/other/moved", "/top").error is None
    assert files(tree) == {"/other/z": b"z", "/other/keys/z": b"z", "/top/c/y": b"y", "/top/k/x": b"x"}
    assert tree.move("/top", "/other/keys/below").error is not None
    assert tree.delete("/top").error is None
    assert files(tree) == {"/other/z": b"z", "/other/keys/z": b"z"}
    assert tree.delete("/other/keys").error is None
    assert tree.delete("/other/keys").error is not None
    store.put(("other", "values"), "v", {"no": "file"})
    assert tree.delete("/other").error is not None
    assert files(tree) == {"/other/z": b"z", "/other/values/v.json": b'{\n  "no": "file"\n}\n'}


def test_searches_begin_anywhere(store: Any, tree: StoreBackend) -> None:
    fill(
        store,
        {
            (("a", "b"), "/k/x.md"): "needle one",
            (("a",), "/y.md"): "needle two",
            (("c",), "/z.txt"): "needle three",
        },
    )
    for found, paths in [
        (tree.grep("needle"), ["/a/b/k/x.md", "/a/y.md", "/c/z.txt"]),
        (tree.grep("needle", "/a", "*.md"), ["/a/b/k/x.md", "/a/y.md"]),
        (tree.grep("needle", "/a/b/k"), ["/a/b/k/x.md"]),
        (tree.grep("needle", glob="a/**/x.md"), ["/a/b/k/x.md"]),
        (tree.glob("b/*/x.md", "/a"), ["/a/b/k/x.md"]),
        (tree.glob("*.md", "/a/y.md"), ["/a/y.md"]),
    ]:
        assert [match["path"] for match in found.matches or ()] == paths
    assert tree.grep("needle", max_count=2).truncated


def test_a_mount_of_it(store: Any, tree: StoreBackend) -> None:
    put(store, ("a",), "/f", "one")
    volume = ForeignVolume(tree, ttl_s=0)
    node = volume.lookup(ROOT_NODE, b"a").node
    assert volume.lookup(node, b"f").size == 3
    waiting = volume.mkdir(node, b"new", 0o755, ME).node
    assert items(store, ("a", "new")) == {}
    put_file(volume, b"g", b"written", waiting)
    assert items(store, ("a", "new")) == {"/g": "written"}
    volume.rename(node, b"f", waiting, b"h")
    assert items(store, ("a", "new")) == {"/g": "written", "/h": "one"}
    assert items(store, ("a",)) == {}
    put(store, ("a",), "/later", "l")
    assert volume.lookup(node, b"later").size == 1
    assert tree.write("/a/by-agent", "x").error is None
    assert volume.lookup(node, b"by-agent").size == 1
    volume.unlink(waiting, b"g")
    refused(errno.EPERM, volume.create, ROOT_NODE, b"top.md", 0o644, os.O_WRONLY, ME)
    empty = volume.mkdir(ROOT_NODE, b"empty", 0o755, ME).node
    for change in (
        lambda: volume.mkdir(ROOT_NODE, b"v1.0", 0o755, ME),
        lambda: volume.rename(ROOT_NODE, b"empty", ROOT_NODE, b"v1.0"),
    ):
        with pytest.raises(OSError, match="No namespace can be called"):
            change()
    assert volume.getattr(empty).is_dir
    assert items(store, ("a", "new")) == {"/h": "one"}
    volume.close()


def test_what_others_write_to_sqlite_is_seen_long_before_the_ttl(tmp_path: Path) -> None:
    with stores.opened("sqlite", tmp_path, None) as store:
        put(store, ("a",), "/f", "one")
        volume = ForeignVolume(open_backend(f"store+sqlite:{tmp_path}/store.db?tree=1&ttl=60"))
        node = volume.lookup(ROOT_NODE, b"a").node
        put(store, ("a",), "/g", "two")
        put(store, ("b",), "/g", "two")
        eventually(lambda: volume.lookup(node, b"g").size == 3)  # a listing that took long is believed for longer
        eventually(lambda: volume.lookup(ROOT_NODE, b"b").is_dir)
        volume.close()


def test_urls(tmp_path: Path) -> None:
    url = f"store+sqlite:{tmp_path}/new.db"
    with open_backend(f"{url}?tree=1&on_exists=replace") as backend:
        assert backend.write("/a/f", "one").error is None
        assert backend.write("/a/f", "two").error is None
    with open_backend(f"{url}?ns=a") as backend:
        assert backend.download_files(["/f"])[0].content == b"two"
    with pytest.raises(UrlError, match="tree=1 shows all namespaces; leave ns out"):
        open_backend(f"{url}?tree=1&ns=a")
    with pytest.raises(UrlError, match=r"\?tree=1 for all"):
        open_backend(url)
    with pytest.raises(TypeError, match="is no LangGraph store"):
        StoreBackend.tree(object())


def test_new_files_of_a_namespace_are_made_together(store: Any, tree: StoreBackend) -> None:
    put(store, ("a", "b"), "/taken", "theirs")
    new = [("/a/b/d/one", b"1"), ("/a/b/d/two", b"2")]
    assert put_new(tree, new) is None
    assert names(tree, "/a/b/d") == ["one", "two"]
    for other in ("/a/b/taken", "/other/file"):  # which is in another namespace
        assert put_new(tree, [("/a/b/d/three", b"3"), (other, b"3")]) == "conflict"
    assert names(tree, "/a/b/d") == ["one", "two"]
