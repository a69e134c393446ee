"""The tree of threads: what is where, under which name, and what searches find."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bigthreads
import graphs
import pytest
import threadcases
from agentface import names
from for_each import for_each
from graphs import delete, edit, say, thread, use, user, write
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import node_at
from profiles import examples
from threadcases import Bench, bench, record

from fusebackend.backends import ThreadsBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import Caller, GlobResult, GrepResult
from fusebackend.remote.keyed import ListedTree, name_of

OF_A_LINE = [
    "README.md", "changes", "checkpoints.tsv", "head", "history", "messages.jsonl", "messages", "space.tsv",
    "state.json", "transcript.md",
]  # fmt: skip


@functools.lru_cache(maxsize=1)
def agent_of(saver: Any) -> Any:
    """An agent that says that it is done; it takes longer to make than to run."""
    return graphs.deep_agent(saver)


def put_files(saver: Any, thread_id: str, files: dict[str, Any]) -> None:
    agent_of(saver).invoke(user("go", files=files), thread(thread_id))


one_database = pytest.mark.parametrize("b", ["sqlite"], indirect=True)
"""For what does not depend on how rows are read."""


def test_what_a_thread_shows(b: Bench) -> None:
    threadcases.plain(b.saver)
    threadcases.a_subagent(b.saver)
    assert names(b.backend, "/") == ["a_subagent", "plain"]
    assert names(b.backend, "/plain") == OF_A_LINE
    assert names(b.backend, "/a_subagent") == [*OF_A_LINE[:-1], "subgraphs", "transcript.md"]
    (space,) = names(b.backend, "/a_subagent/subgraphs")
    assert names(b.backend, f"/a_subagent/subgraphs/{space}") == [name for name in OF_A_LINE if name != "space.tsv"]
    assert names(b.backend, "/plain/head") == ["a.txt", "c.txt", "second.txt"]


def test_a_single_thread_is_found_without_listing_all(b: Bench) -> None:
    for thread_id in ("one", "t/1", "x" * 300):
        put_files(b.saver, thread_id, {"/f.txt": record("x")})
    for thread_id in ("one", "t/1", "x" * 300):
        fresh = type(b.backend)(b.backend.volume._database)
        assert fresh.volume.lookup(1, name_of(thread_id)).is_dir
        assert fresh.ls("/nobody").error is not None


def test_keys_that_are_no_paths_are_shown_and_listed(b: Bench) -> None:
    keys = [
        "//x",
        "/a/",
        "/both",
        "/both/below.txt",
        "relative.md",
        "/relative.md",
        "/",
        "",
        "/a/../b",
        "/" + "k" * 300,
    ]
    put_files(b.saver, "odd", {key: record(key) for key in keys})
    expected = dict(ListedTree(keys).all())
    assert b.tree("/odd/head") == {path: key.encode() for path, key in expected.items()}
    assert b.tree(b.history("/odd")[-1]) == {path: key.encode() for path, key in expected.items()}
    shown = json.loads(b.get("/odd/state.json") or b"")["file_keys"]
    assert shown == {path: key for path, key in expected.items() if path != key}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("/%.~ "), max_size=8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    where = str(tmp_path_factory.mktemp("shared") / "threads.db")
    with bench("sqlite", where) as made:
        yield made


@settings(max_examples=examples(25))
@given(
    files=st.dictionaries(
        TEXTS.map(lambda key: "/" + key),
        st.text(max_size=40) | st.binary(max_size=40) | st.just("trailing\n") | st.just(""),
        max_size=6,
    ),
)
def test_any_files_come_out_as_they_went_in(shared: Bench, files: dict[str, str | bytes]) -> None:
    import base64

    name = uuid.uuid4().hex  # of a thread that no other example has put files into

    def data(content: str | bytes) -> dict[str, Any]:
        if isinstance(content, bytes):
            return {"content": base64.b64encode(content).decode(), "encoding": "base64"}
        return {"content": content, "encoding": "utf-8"}

    put_files(shared.saver, name, {key: data(content) for key, content in files.items()})
    places = dict(ListedTree(files).all())
    expected = {
        path: content if isinstance(content := files[key], bytes) else content.encode() for path, key in places.items()
    }
    assert shared.tree(f"/{name}/head") == expected


@one_database
def test_everything_is_read_only(b: Bench) -> None:
    threadcases.plain(b.saver)
    volume, caller = b.backend.volume, Caller(0, 0)
    plain, head, file = (node_at(volume, path) for path in ("/plain", "/plain/head", "/plain/head/a.txt"))
    assert volume.features.read_only
    for attempt in (
        lambda: volume.create(head, b"x", 0o644, os.O_WRONLY, caller),
        lambda: volume.mknod(head, b"x", stat.S_IFREG | 0o644, 0, caller),
        lambda: volume.mkdir(1, b"x", 0o755, caller),
        lambda: volume.symlink(head, b"x", b"y", caller),
        lambda: volume.link(file, head, b"x"),
        lambda: volume.unlink(head, b"a.txt"),
        lambda: volume.rmdir(1, b"plain"),
        lambda: volume.rename(head, b"a.txt", head, b"x"),
        lambda: volume.write(file, 0, b"x"),
        lambda: volume.setxattr(file, b"user.x", b"y"),
        lambda: volume.removexattr(file, b"user.x"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            attempt()
    for node in (plain, head, file):
        assert not volume.getattr(node).mode & 0o222
    responses = b.backend.upload_files([("/plain/head/x", b""), ("/x", b"")])
    assert [response.error for response in responses] == ["permission_denied"] * 2


@one_database
def test_state_says_what_is_next_and_what_is_asked(b: Bench) -> None:
    agent = threadcases.waiting_for_approval(b.saver)
    state = json.loads(b.get("/waiting_for_approval/state.json") or b"")
    snapshot = agent.get_state(thread("waiting_for_approval"))
    assert tuple(state["next"]) == snapshot.next
    assert state["checkpoint_id"] == snapshot.config["configurable"]["checkpoint_id"]
    assert state["metadata"]["step"] == snapshot.metadata["step"]
    (asked,) = state["interrupts"]
    assert (asked["value"], asked["id"]) == (snapshot.interrupts[0].value, snapshot.interrupts[0].id)


def test_langgraph_is_not_needed_to_read(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        threadcases.a_subagent(saver)
    program = (
        "import sys\n"
        "from fusebackend.urls import open_backend\n"
        f"backend = open_backend('threads+sqlite:{path}')\n"
        "matches = backend.glob('**/*').matches + backend.glob('*/history/**/*').matches\n"
        "assert len(matches) > 20\n"
        "for match in matches:\n"
        "    assert backend.download_files([match['path']])[0].error is None\n"
        "backend.close()\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'langgraph', 'langchain_core', 'langchain', 'psycopg', 'deepagents', 'pyfuse3'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_the_extra_the_command_line_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    path.touch()
    program = (
        "import sys\n"
        "sys.modules['ormsgpack'] = None\n"
        "sys.modules['psycopg'] = None\n"
        "from fusebackend.urls import UrlError, open_backend\n"
        "for url in sys.argv[1:]:\n"
        "    try:\n"
        "        open_backend(url)\n"
        "    except UrlError as error:\n"
        "        print(error)\n"
    )
    urls = [f"threads+sqlite:{path}", "threads+postgres:host=/nowhere"]
    done = subprocess.run(
        [sys.executable, "-c", program, *urls], check=True, timeout=60, capture_output=True, text=True
    )
    assert ["pip install 'fusebackend[langgraph]'" in line for line in done.stdout.splitlines()] == [True] * 2


# -- searches ----------------------------------------------------------------------------------------------------------


LEFT_OUT = "history/, messages/, changes/ and the pages of threads are searched only where path or pattern name one"


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadsBackend]:
    path = tmp_path_factory.mktemp("threads") / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        for name in ("one", "two"):
            script = [use(write("/a.md", "old needle")), use(edit("/a.md", "old", "new")), use(write("/b.md", name))]
            graphs.deep_agent(saver, [*script, use(delete("/b.md")), say("done")]).invoke(user("go"), thread(name))
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        yield backend


@pytest.fixture
def composite(threads: ThreadsBackend) -> CompositeBackend:
    notes = InMemoryBackend()
    notes.upload_files([("/n.md", b"a needle in notes")])
    return CompositeBackend(default=notes, routes={"/threads/": threads})


def found(result: GrepResult | GlobResult) -> set[str]:
    assert result.error is None
    assert not result.truncated
    return {match["path"] for match in result.matches or ()}


def test_a_search_of_all_looks_at_heads_and_says_what_it_leaves_out(threads: ThreadsBackend) -> None:
    result = threads.glob("**/*.md")
    assert found(result) == {"/one/head/a.md", "/two/head/a.md"}
    assert result.missing == LEFT_OUT
    result = threads.grep("needle", glob="*.md")
    assert found(result) == {"/one/head/a.md", "/two/head/a.md"}
    assert result.missing == LEFT_OUT
    assert {"/one/messages.jsonl", "/one/head/a.md"} <= found(threads.grep("needle", "/one"))


@pytest.mark.parametrize("path", ["/one/history", "/one/history/"])
def test_a_path_that_names_the_history_is_searched(threads: ThreadsBackend, path: str) -> None:
    result = threads.grep("old needle", path)
    assert result.missing is None
    assert any(path.startswith("/one/history/") for path in found(result))
    assert any(path.endswith("/b.md") for path in found(threads.glob("*.md", path)))
    checkpoint = next(path for path in sorted(found(result)) if path.endswith("/a.md"))
    assert found(threads.glob("a.md", checkpoint.removesuffix("/a.md"))) == {checkpoint}


@for_each("pattern", ["one/history/*/b.md", "*/history/*/b.md", "**/history/**/b.md", "one/{head,history}/**/b.md"])
def test_a_pattern_that_names_the_history_finds_what_is_in_it(threads: ThreadsBackend, pattern: str) -> None:
    result = threads.glob(pattern)
    assert any(path.startswith("/one/history/") for path in found(result))
    assert result.missing is None
    assert found(threads.grep("one", glob=pattern)) == {path for path in found(result) if path.startswith("/one/")}


def test_so_it_is_in_a_composite(composite: CompositeBackend) -> None:
    result = composite.grep("needle", glob="**/*.md")
    assert found(result) == {"/n.md", "/threads/one/head/a.md", "/threads/two/head/a.md"}
    assert result.missing == LEFT_OUT
    assert found(composite.glob("**/b.md")) == set()
    result = composite.glob("**/history/**/b.md")
    assert any(path.startswith("/threads/two/history/") for path in found(result))
    assert result.missing is None
    assert any("/history/" in path for path in found(composite.grep("one", glob="threads/one/history/*/b.md")))
    assert any("/history/" in path for path in found(composite.grep("old", "/threads/one/history")))
    assert composite.grep("needle", "/threads").missing == LEFT_OUT


def test_a_composite_goes_straight_to_what_a_pattern_names(
    composite: CompositeBackend, threads: ThreadsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    readdir = threads.volume.readdir
    monkeypatch.setattr(threads.volume, "readdir", lambda node, *rest: listed.append(node) or readdir(node, *rest))
    without = threads.volume.readdir_without  # type: ignore[attr-defined]
    monkeypatch.setattr(
        threads.volume, "readdir_without", lambda node, *rest: listed.append(node) or without(node, *rest)
    )
    assert any("/history/" in path for path in found(composite.glob("threads/one/history/**/b.md")))
    assert threads.volume.lookup(1, b"two").node not in listed
    assert 1 not in listed


def test_a_directory_of_an_agent_that_is_called_history_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        script = [use(write("/history/mine.md", "needle")), say("done")]
        graphs.deep_agent(saver, script).invoke(user("go"), thread("t"))
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        assert found(backend.glob("**/*.md")) == {"/t/head/history/mine.md"}


def test_histories_of_subagents_are_left_out_as_well(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with graphs.sqlite_saver(path) as saver:
        threadcases.a_subagent(saver)
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        places = found(backend.glob("*.txt"))
        assert not any("/history/" in path for path in places)
        assert found(backend.glob("**/history/**/*.txt")) != set()


def test_a_search_of_many_threads_reads_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "threads.db"
    bigthreads.make(path, threads=20, checkpoints=20, files=20)
    with ThreadsBackend.from_sqlite(str(path)) as backend:
        asked: list[Any] = []
        newest: list[Any] = []
        database = backend.volume._database  # type: ignore[attr-defined]
        saved, links = database.saved, database.links
        monkeypatch.setattr(database, "saved", lambda *arguments: newest.append(arguments) or saved(*arguments))
        monkeypatch.setattr(database, "links", lambda *arguments: asked.extend(arguments[1]) or links(*arguments))
        assert len(found(backend.grep("version", glob="*.md"))) == 20 * 20
        assert len(asked) <= 20 * 2 * 2  # of two channels, the newest checkpoint and the one before
        assert len(newest) <= 20
