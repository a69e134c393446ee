"""What is made in a PostgreSQL database, what it tells of changes, and what is done without."""

from __future__ import annotations

import contextlib

import pytest
import stores
from agentface import names
from ears import Ear
from raising import raising
from stores import NS
from together import together

from fusebackend.backends import StoreBackend, volume_of
from fusebackend.backends.store.postgres_database import CHANNEL
from fusebackend.urls import open_backend

FILE = {"content": "x", "encoding": "utf-8"}


@pytest.fixture
def store(postgres_dsn, tmp_path):
    with stores.opened("postgres", tmp_path, postgres_dsn) as store:
        yield store


class Keys(Ear):
    def wait(self, *wanted):
        """Wait for keys, which are the last ones that it has heard, and forget what it has heard."""
        super().wait(lambda heard: heard[-len(wanted) :] == list(wanted))
        self.heard.clear()


@pytest.fixture
def ear(backend):
    ear = Keys()
    stop = backend.items.watch(ear)
    yield ear
    stop()


def made(store):
    """What there is of ours in the database."""
    rows = store.conn.execute(
        "SELECT tgname AS name FROM pg_trigger WHERE NOT tgisinternal UNION SELECT proname FROM pg_proc"
        " WHERE proname LIKE 'fusebackend%' UNION SELECT relname FROM pg_class WHERE relname LIKE 'fusebackend%'"
    )
    return sorted(row["name"] for row in rows)


def test_every_change_of_others_is_told(store, backend, ear):
    assert backend.items.feed
    before = backend.items.token()
    for change in (
        lambda: store.put(NS, "/a", FILE),
        lambda: store.put(NS, "/a", {**FILE, "content": "y"}),
        lambda: store.delete(NS, "/a"),
    ):
        change()
        ear.wait("/a")
    assert backend.items.token() != before
    store.put(NS, "/old", FILE)
    store.conn.execute("UPDATE store SET key = '/new' WHERE key = '/old'")
    ear.wait("/old", "/old", "/new")
    store.put(NS, "/" + "n" * 2000, FILE)
    ear.wait("/" + "n" * 2000)
    store.conn.execute("TRUNCATE store")
    ear.wait(None)


def test_a_key_too_long_for_a_notification_is_told_as_anything(store, ear):
    store.conn.execute("DROP INDEX store_prefix_idx")
    store.conn.execute("ALTER TABLE store DROP CONSTRAINT store_pkey")
    store.conn.execute("INSERT INTO store (prefix, key, value) VALUES ('memories', repeat('k', 9000), '{}')")
    ear.wait(None)


def test_what_is_no_change_of_this_namespace_is_not_told(store, backend, ear):
    store.put(("other",), "/a", FILE)
    store.put((*NS, "sub"), "/a", FILE)
    backend.write("/own", "x")
    store.put(NS, "/mortal", FILE, ttl=5)
    ear.wait("/mortal")
    store.ttl_config = {"refresh_on_read": True}
    assert store.get(NS, "/mortal", refresh_ttl=True) is not None  # moves the end of its life, which no listing shows
    store.put(NS, "/last", FILE)
    ear.wait("/last")


def test_who_has_stopped_listening_hears_nothing(store, backend, ear):
    second = Keys()
    stop = backend.items.watch(second)
    stop()
    stop()
    store.put(NS, "/a", FILE)
    ear.wait("/a")
    assert second.heard == []


def test_a_listener_that_fails_does_not_end_the_feed(store, backend, ear, caplog):
    stop = backend.items.watch(raising(RuntimeError("no luck")))
    for key in ("/a", "/b"):
        store.put(NS, key, FILE)
        ear.wait(key)
    stop()
    assert "a subscriber failed" in caplog.text


def test_anybody_may_notify(store, ear):
    """Words that are not from the trigger mean that anything may have changed; those of another table mean nothing."""
    for payload in ("", "no json", "[1]", '{"t": 1, "p": "memories", "k": "/x"}', '{"p": "memories", "k": "/x"}'):
        store.conn.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
    ear.wait(None, None, "/x")


def test_a_lost_connection_is_made_again_and_anything_may_have_changed(store, backend, ear):
    feed = backend.items._database.feed()
    assert backend.items.token() is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed._listener, "live", False)
        assert backend.items.token() is None, "while it is lost nothing is believed"
    store.conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND (query LIKE 'LISTEN%' OR query LIKE '%regclass%' AND pid <> pg_backend_pid())"
    )
    ear.wait(None, None)  # lost, and back
    assert feed.live
    store.put(NS, "/a", FILE)
    ear.wait("/a")


def test_the_trigger_is_made_once_whoever_comes_first(postgres_dsn, store):
    with contextlib.ExitStack() as opened:
        backends = [opened.enter_context(stores.other_program(store, NS)) for _ in range(4)]
        together(*(lambda backend=backend: backend.items.feed for backend in backends))
        assert all(backend.items.feed for backend in backends)
        assert made(store) == ["fusebackend_store_changed", "fusebackend_store_notify", "fusebackend_store_truncated"]


def test_nothing_is_made_by_an_agent_alone_nor_when_it_is_not_wanted(postgres_dsn, store):
    with StoreBackend(store, namespace=NS) as backend:
        backend.write("/a", "x")
        backend.ls("/")
    with open_backend(f"store+postgres:{postgres_dsn}?ns=memories&feed=off") as backend:
        volume = volume_of(backend)
        assert not volume.features.change_feed
        assert volume.lookup(1, b"a").size == 1
        stop = volume.subscribe(print)
        stop()
    assert made(store) == []


@pytest.fixture
def guest(postgres, postgres_dsn, store):
    """The DSN of somebody who may read the table and nothing else."""
    store.put(NS, "/a", FILE)
    store.put(NS, "prefs", {"theme": "dark"})
    store.conn.execute("CREATE ROLE guest LOGIN")
    store.conn.execute("GRANT SELECT ON store TO guest")
    yield postgres_dsn.replace("user=postgres", "user=guest")
    store.conn.execute("DROP OWNED BY guest")
    store.conn.execute("DROP ROLE guest")


def test_who_may_only_read_reads_without_a_feed(store, guest):
    with open_backend(f"store+postgres:{guest}?ns=memories") as backend:
        assert [info["path"] for info in backend.ls("/").entries] == ["/a", "/prefs.json"]
        assert not volume_of(backend).features.change_feed
        assert backend.items.token() is None
        assert (
            backend.write("/b", "x").error == "Error writing file '/b': PostgreSQL: permission denied for table store"
        )
        assert backend.upload_files([("/a", b"")])[0].error == "permission_denied"
    assert made(store) == []


def test_a_table_that_is_in_use_is_not_waited_for(postgres_dsn, store, monkeypatch):
    import psycopg

    from fusebackend.backends.store import postgres_database

    monkeypatch.setattr(postgres_database, "LOCK_S", 0.1)
    with psycopg.connect(postgres_dsn) as busy, StoreBackend(store, namespace=NS) as backend:
        busy.execute("LOCK TABLE store IN ROW EXCLUSIVE MODE")
        assert not backend.items.feed
        assert backend.ls("/").error is None
    assert made(store) == []


# -- databases that sort by language ---------------------------------------------------------------------------

KEYS = ["/a/b", "/a-b", "/a/c/d", "/A", "/b", "/é", "/z/1", "/z/2", "/Z", "//x", "bare", "/a/", "/a.txt", "/_", "/10"]


@pytest.fixture
def by_language(postgres, tmp_path):
    name = "by_language"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    with stores.opened("postgres", tmp_path, postgres.dsn(name)) as store:
        for key in KEYS:
            store.put(NS, key, FILE)
        yield store
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def everything(backend):
    return {path: [info["path"] for info in backend.ls(path).entries] for path in ("/", "/a", "/z", "/%", "/a/c")} | {
        "glob": [info["path"] for info in backend.glob("**").matches],
        "grep": [match["path"] for match in backend.grep("x", "/a").matches],
    }


def test_keys_are_in_the_order_of_bytes_whatever_the_language(by_language, store):
    for key in KEYS:
        store.put(NS, key, FILE)
    with StoreBackend(store, namespace=NS) as plain:
        expected = everything(plain)
    with StoreBackend(by_language, namespace=NS, feed=False) as backend:
        assert everything(backend) == expected
    assert made(by_language) == []
    with StoreBackend(by_language, namespace=NS) as backend:
        assert everything(backend) == expected
    assert made(by_language) == ["fusebackend_store_keys"]
    by_language.conn.execute("SET enable_seqscan = off")  # the table is small
    plan = by_language.conn.execute(
        """EXPLAIN SELECT s.key FROM store s WHERE s.prefix = 'memories' AND s.key COLLATE "C" >= '/a/' """
        """AND s.key COLLATE "C" < '/a0' ORDER BY s.key COLLATE "C" LIMIT 10"""
    ).fetchall()
    assert "fusebackend_store_keys" in str(plan)


def test_a_half_made_index_is_made_again(by_language):
    by_language.conn.execute("CREATE INDEX fusebackend_store_keys ON store (key)")
    by_language.conn.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('fusebackend_store_keys')"
    )
    with StoreBackend(by_language, namespace=NS) as backend:
        assert "/a/" in everything(backend)["/"]
    (row,) = by_language.conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'fusebackend_store_keys'")
    assert 'COLLATE "C"' in row["indexdef"]


# -- life ------------------------------------------------------------------------------------------------------


def test_what_has_expired_is_gone_where_the_store_says_so(store):
    store.put(NS, "/a", FILE, ttl=1)
    store.conn.execute("UPDATE store SET expires_at = now() - interval '1 minute'")
    with StoreBackend(store, namespace=NS) as backend:
        assert names(backend) == ["a"]
    store.ttl_config = {"omit_expired": True}
    with StoreBackend(store, namespace=NS) as backend:
        assert backend.ls("/").entries == []
        assert backend.read("/a").error == "File '/a' not found"
        assert backend.write("/a", "new").error is None
        assert "new" in backend.read("/a")


def test_a_pool_serves_as_well_as_a_connection(postgres_dsn, tmp_path):
    from langgraph.store.postgres import PostgresStore

    with PostgresStore.from_conn_string(postgres_dsn, pool_config={"min_size": 1, "max_size": 2}) as store:
        store.setup()
        with StoreBackend(store, namespace=NS) as backend:
            assert backend.write("/a", "x").error is None
            assert backend.items.feed
        assert store.get(NS, "/a").value["content"] == "x"


def test_where_no_connection_of_our_own_can_be_made_the_stores_is_shared(store, monkeypatch):
    from fusebackend.backends.store import postgres_database

    monkeypatch.setattr(postgres_database, "dsn_of", lambda connection: "host=/nowhere")
    with StoreBackend(store, namespace=NS) as backend:
        assert backend.write("/a", "x").error is None
        assert backend.edit("/a", "x", "y").error is None
        assert not backend.items.feed
    assert store.get(NS, "/a").value["content"] == "y"  # and it is still open
