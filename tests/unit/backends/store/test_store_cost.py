"""What a verb costs in a store of many keys: it reads what it shows, and never the whole namespace."""

from __future__ import annotations

import itertools

import pytest
import stores
from for_each import for_each
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from stores import NS
from together import over_and_over

from fusebackend.backends import StoreBackend, volume_of
from fusebackend.backends.store import sql_items

VALUE = {"content": "x" * 1000 + "\n", "encoding": "utf-8", "modified_at": "2026-01-01T00:00:00+00:00"}


def fill(store, keys):
    keys = list(keys)
    for begin in range(0, len(keys), 2000):
        store.batch([PutOp(NS, key, VALUE) for key in keys[begin : begin + 2000]])


def tree(directories):
    """Twenty files in each directory."""
    return (f"/dir{number:05}/file{index:02}.md" for number in range(directories) for index in range(20))


@pytest.fixture(params=stores.SQL_KINDS)
def store(request, tmp_path):
    with stores.of_request(request, request.param, tmp_path) as store:
        yield store


@pytest.fixture
def rows(monkeypatch):
    """Every key that is read, by whichever statement."""
    read = []

    def fetched(cursor, opening, plain=sql_items._rows):
        found = plain(cursor, opening)
        read.extend(row.key for row in found)
        return found

    monkeypatch.setattr(sql_items, "_rows", fetched)
    return read


def test_a_listing_reads_what_it_lists(store, rows):
    fill(store, tree(200))
    with StoreBackend(store, namespace=NS) as backend:
        for most, verb, *arguments in [
            (25, "ls", "/dir00100"),
            (1000, "ls", "/"),  # hops over what is below; PostgreSQL reads a batch before it knows that it has to
            (3, "read", "/dir00100/file07.md"),
            (5, "write", "/dir00100/new.md", ""),
            (5, "edit", "/dir00100/file07.md", "x\n", "y\n"),
            (23, "glob", "*.md", "/dir00042"),
            (23, "grep", "x", "/dir00042"),
        ]:
            rows.clear()
            found = getattr(backend, verb)(*arguments)
            assert found.error is None and len(rows) <= most, (verb, arguments, len(rows))
            assert verb != "ls" or len(found.entries) == (20 if most == 25 else 200)


def test_one_large_directory_is_read_once(store, rows):
    fill(store, (f"/flat/{number:05}" for number in range(3000)))
    with StoreBackend(store, namespace=NS) as backend:
        assert len(backend.ls("/flat").entries) == 3000
        assert len(rows) <= 3010
        rows.clear()
        assert [info["path"] for info in backend.ls("/").entries] == ["/flat/"]
        assert len(rows) <= 300


def counted_fetches(backend, monkeypatch):
    """The keys whose values are fetched from now on."""
    kind, fetched = type(backend.items), []
    plain = kind.fetch
    monkeypatch.setattr(kind, "fetch", lambda items, keys: (fetched.extend(keys), plain(items, keys))[1])
    return fetched


def test_sizes_are_asked_for_once(store, monkeypatch):
    fill(store, tree(2))
    with StoreBackend(store, namespace=NS) as backend:
        before = backend.ls("/dir00000").entries
        fetched = counted_fetches(backend, monkeypatch)
        assert backend.ls("/dir00000").entries == before
        assert fetched == []
        store.put(NS, "/dir00000/file03.md", {**VALUE, "content": "changed"})
        assert backend.ls("/dir00000").entries[3]["size"] == 7
        assert fetched == ["/dir00000/file03.md"]


def test_a_search_in_md_reads_no_other_file_again(store, monkeypatch):
    """Any key may have a long text, which is a `.md`."""
    fill(store, [f"/{number}.txt" for number in range(50)] + ["/a.md"])
    store.put(NS, "/memory", {"text": "x\ny\n"})
    with StoreBackend(store, namespace=NS) as backend:
        found = [match["path"] for match in backend.grep("x", glob="*.md").matches]
        assert found == ["/a.md", "/memory.md"]
        fetched = counted_fetches(backend, monkeypatch)
        assert [match["path"] for match in backend.grep("x", glob="*.md").matches] == found
        assert [info["path"] for info in backend.glob("*.md").matches] == found
        assert sorted(fetched) == ["/a.md", "/memory"]


def test_the_lookups_of_a_mount_list_a_directory_once(store, monkeypatch):
    """Whoever walks a tree asks for each name of it."""
    fill(store, tree(3))
    with StoreBackend(store, namespace=NS) as backend:
        volume = volume_of(backend)
        listed = []
        plain = volume.remote.contents
        monkeypatch.setattr(volume.remote, "contents", lambda key: (listed.append(key), plain(key))[1])
        for _ in range(3):
            for number in range(3):
                directory = volume.lookup(1, f"dir{number:05}".encode()).node
                volume.hold(directory)
                for index in range(20):
                    volume.lookup(directory, f"file{index:02}.md".encode())
        assert sorted(listed) == ["", "dir00000/", "dir00001/", "dir00002/"]


@for_each("verb", ["ls", "glob", "grep", "read", "write", "delete", "move", "upload_files"])
def test_another_store_is_searched_once_for_a_verb(verb):
    searched = []

    class Remote(InMemoryStore):
        """No class that is known here: so it is paged through."""

        def search(self, namespace, /, *, limit=10, offset=0, **options):
            found = super().search(namespace, limit=limit, offset=offset, **options)
            searched.extend(item.key for item in found)
            return found

    store = Remote()
    fill(store, tree(100))
    backend = StoreBackend(store, namespace=NS)
    arguments = {
        "ls": ("/dir00050",),
        "glob": ("**/*.md",),
        "grep": ("x", "/dir00050"),
        "read": ("/dir00050/file00.md",),
        "write": ("/dir00050/new.md", ""),
        "delete": ("/dir00050",),
        "move": ("/dir00050", "/moved"),
        "upload_files": ([(f"/dir00051/new{number}", b"") for number in range(30)],),
    }[verb]
    result = getattr(backend, verb)(*arguments)
    assert all(one.error is None for one in (result if isinstance(result, list) else [result]))
    pages = 8
    assert len(searched) <= 2000 + pages
    assert len(set(searched)) == (2000 if verb != "read" else 0)


def test_a_search_that_others_disturb_misses_nothing_that_stays():
    """Items that come and go move the rest: what was passed over is found when the search is made again."""

    class Busy(InMemoryStore):
        searches = 0

        def search(self, namespace, /, *, limit=10, offset=0, **options):
            found = super().search(namespace, limit=limit, offset=offset, **options)
            type(self).searches += 1
            if type(self).searches == 1:
                for number in range(100):
                    self.delete(NS, f"/gone{number:03}")
            return found

    store = Busy()
    fill(store, [*(f"/gone{number:03}" for number in range(100)), *(f"/kept{number:04}" for number in range(1000))])
    entries = StoreBackend(store, namespace=NS).ls("/").entries
    assert {info["path"] for info in entries} >= {f"/kept{number:04}" for number in range(1000)}


def test_a_store_in_memory_is_listed_while_others_change_it():
    """LangGraph's own `search` raises then: it runs through the dict that they change."""
    store = InMemoryStore()
    fill(store, tree(50))
    backend = StoreBackend(store, namespace=NS)
    numbers = itertools.count(1)

    def change():
        number = next(numbers)
        store.put(NS, f"/busy/{number}", VALUE)
        store.delete(NS, f"/busy/{number - 1}")

    with over_and_over(change):
        for _ in range(40):
            assert len(backend.ls("/dir00001").entries) == 20
            assert len(backend.glob("dir00002/*").matches) == 20
