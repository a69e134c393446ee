"""What people see of a thread is all that LangGraph knows of it, once: conversation, checkpoints, changes, states."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import conversations
import pytest
import threadview
from conversations import STORIES
from for_each import for_each
from langgraph.checkpoint.memory import InMemorySaver
from threadcases import reader
from threadview import Step, View, steps

from fusebackend.backends.threads import ThreadsBackend
from fusebackend.backends.threads.database.rows import time_ns_of

NIGHT = pytest.mark.night
KINDS = [
    "sqlite", pytest.param("postgres", marks=[NIGHT, pytest.mark.services]), pytest.param("memory", marks=NIGHT),
]  # fmt: skip
"""By day, `test_threads_state.py` and `test_threads_model.py` read the others."""


class Bench:
    """A database in which each of the stories is told in a thread of that name."""

    def __init__(self, kind: str, where: str, saver: Any) -> None:
        self.kind = kind
        self.where = where
        self.saver = saver
        self.agents = {name: story(saver, name) for name, story in STORIES.items()}
        self.backend = self.again()
        self._views: dict[str, View] = {}
        self._steps: dict[tuple[str, str], list[Step]] = {}

    def again(self) -> ThreadsBackend:
        return ThreadsBackend.from_saver(self.saver) if self.kind == "memory" else reader(self.kind, self.where)

    def steps(self, story: str, space: str = "") -> list[Step]:
        """What LangGraph says of a story, asked once."""
        if (story, space) not in self._steps:
            self._steps[story, space] = threadview.steps(self.agents[story], story, space)
        return self._steps[story, space]

    def view(self, path: str) -> View:
        return self._views.setdefault(path, View(self.backend, path))


@pytest.fixture(scope="module", params=KINDS)
def b(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        work = tmp_path_factory.mktemp("threads")
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_CACHE_HOME", str(work / "cache"))
        where = str(work / "threads.db")
        if request.param == "postgres":
            where = stack.enter_context(request.getfixturevalue("postgres").database())
        saver = stack.enter_context(conversations.opened(request.param, where))
        bench = Bench(request.param, where, saver)
        stack.callback(bench.backend.close)
        yield bench


each_story = for_each("story", STORIES)


CHECKS: dict[str, Callable[[View, list[Step]], None]] = {
    "every message and call is found once": lambda view, found: threadview.check_conversation(
        view, threadview.all_messages(found)
    ),
    "every checkpoint has a row": threadview.check_rows,
    "every checkpoint has its files, messages and values": threadview.check_history,
    "the readme says what it was about": threadview.check_readme,
}


@each_story
@for_each("check", CHECKS)
def test_what_people_see_is_what_langgraph_knows(b: Bench, story: str, check: str) -> None:
    CHECKS[check](b.view(f"/{story}"), b.steps(story))


@each_story
def test_git_applies_the_changes(b: Bench, story: str, tmp_path: Path) -> None:
    threadview.check_patches(b.view(f"/{story}"), b.steps(story), tmp_path)


@each_story
def test_the_present_is_as_before(b: Bench, story: str) -> None:
    view, now = b.view(f"/{story}"), b.agents[story].get_state(threadview.thread(story))
    step = b.steps(story)[-1]._replace(values=now.values)
    threadview.check_messages_at(view.tree()["messages.jsonl"], step)
    assert view.below("head") == step.files
    assert json.loads(view.tree()["state.json"])["checkpoint_id"] == step.id


def spaces(b: Bench, story: str) -> list[str]:
    listing = b.backend.ls(f"/{story}/subgraphs").entries or []
    return [entry["path"].rstrip("/").rpartition("/")[2] for entry in listing]


def test_subgraphs_are_shown_the_same_way(b: Bench, tmp_path: Path) -> None:
    found = spaces(b, "nested_graphs")
    assert len(found) == 2
    for number, space in enumerate(found):
        view, expected = b.view(f"/nested_graphs/subgraphs/{space}"), b.steps("nested_graphs", space)
        threadview.check_conversation(view, threadview.all_messages(expected))
        for check in (threadview.check_rows, threadview.check_history):
            check(view, expected)
        threadview.check_patches(view, expected, tmp_path / str(number))


def test_the_conversation_of_a_subagent_is_shown(b: Bench) -> None:
    found = spaces(b, "manager")
    assert len(found) == 3
    told = []
    for space in found:
        view = b.view(f"/manager/subgraphs/{space}")
        transcript = view.tree()["transcript.md"].decode()
        told += threadview.sections(transcript)
        assert set(view.messages()) == {section.number for section in threadview.sections(transcript)}
        assert view.below("changes")
    for part in ("first", "second", "third"):
        assert sum(f"The {part} part is done" in section.body for section in told) == 1


def test_the_times_are_those_of_checkpoints(b: Bench) -> None:
    view, found = b.view("/coder"), b.steps("coder")
    names = view.names()
    brought = [
        time_ns_of(step.id) or 0
        for step, added in zip(found, threadview.added_messages(found), strict=True)
        for _ in added
    ]
    by_number = dict(zip(view.messages(), brought, strict=True))
    for number, files in view.messages().items():
        for name in files:
            assert abs(view.attr(f"messages/{name}").mtime_ns - by_number[number]) < 10**6
    for step in found:
        assert abs(view.attr(f"history/{names[step.id]}").mtime_ns - (time_ns_of(step.id) or 0)) < 10**6
        assert abs(view.attr(f"history/{names[step.id]}.state.json").mtime_ns - (time_ns_of(step.id) or 0)) < 10**6


@each_story
def test_sizes_are_exact_before_anything_is_read(b: Bench, story: str) -> None:
    with b.again() as backend:
        fresh = View(backend, f"/{story}")
        paths = [path for path in b.view(f"/{story}").tree() if not path.startswith("head/")]
        sizes = {path: fresh.attr(path).size for path in reversed(paths)}
        assert sizes == {path: len(b.view(f"/{story}").tree()[path]) for path in reversed(paths)}


# -- links -----------------------------------------------------------------------------------------------------------


def target(view: View, path: str) -> str:
    attr = view.attr(path, follow=False)
    assert stat.S_ISLNK(attr.mode), path
    return view.backend.volume.readlink(attr.node).decode()


@for_each("story", ["coder", "forks", "pipeline", "old_files"])
def test_links_of_a_history(b: Bench, story: str) -> None:
    view, found = b.view(f"/{story}"), b.steps(story)
    names = view.names()
    assert target(view, "history/@latest") == names[found[-1].id]
    assert target(view, "history/@first") == names[found[0].id]
    others = [step for step in found if step.files != found[-1].files]
    if others:
        assert target(view, "history/@previous") == names[others[-1].id]
        assert b.backend.ls(f"/{story}/history/@previous").error is None
    listed = {entry["path"].rpartition("/")[2] for entry in b.backend.ls(f"/{story}/history").entries or []}
    assert not any(name.startswith("@") for name in listed)
    (answer,) = b.backend.download_files([f"/{story}/history/@latest.state.json"])
    assert answer.error is not None or answer.content == view.tree()[f"history/{names[found[-1].id]}.state.json"]


def test_links_of_all_threads(b: Bench) -> None:
    root = View(b.backend, "")
    newest = max(STORIES, key=lambda story: b.steps(story)[-1].id)
    assert target(root, "@latest") == newest
    assert b.backend.download_files(["/@latest/README.md"])[0].content == b.view(f"/{newest}").tree()["README.md"]
    assert {entry["path"].strip("/") for entry in b.backend.ls("/").entries or []} == set(STORIES)
    volume = b.backend.volume
    directory = root.attr("@by-time", follow=False)
    links = {
        name.decode(): volume.readlink(attr.node).decode() for name, attr in volume.readdir(directory.node, b"", 1000)
    }
    assert sorted(links.values()) == sorted(f"../{story}" for story in STORIES)
    by_thread = {link.removeprefix("../"): name for name, link in links.items()}
    assert by_thread["coder"].endswith("-please-fix-the-login-test-of-the")
    for story, name in by_thread.items():
        created = datetime.datetime.fromisoformat(b.steps(story)[0].at)
        assert name.startswith(f"{created:%Y-%m-%dT%H%M}-")
        assert re.fullmatch(r"[A-Za-z0-9-]+", name)


# -- searching -------------------------------------------------------------------------------------------------------


def test_verbs_find_and_read_it(b: Bench) -> None:
    view = b.view("/coder")
    (legacy,) = [name for name, data in view.below("messages").items() if b"so I delete it" in data]
    for options, expected in [
        ({"path": "/coder/messages"}, f"/coder/messages/{legacy}"),
        ({"glob": "transcript.md"}, "/coder/transcript.md"),
    ]:
        assert {match["path"] for match in b.backend.grep("so I delete it", **options).matches or []} == {expected}
    patches = b.backend.grep("deleted file mode", "/coder/changes").matches or []
    assert len(patches) == 2
    assert "so I delete it" in str(b.backend.read(f"/coder/messages/{legacy}"))
    assert len(b.backend.glob("*/README.md").matches or []) == len(STORIES)


# -- the generator ---------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_copies_of_threads_are_as_real_as_their_seeds(tmp_path: Path) -> None:
    """`conversations.fill`: LangGraph reads a copy as it reads the seed, but for the changed words."""
    with conversations.opened("sqlite", str(tmp_path / "threads.db")) as saver:
        made = conversations.fill(saver, 2 * len(STORIES))
        assert list(made) == [f"T{number:07}" for number in range(2 * len(STORIES))]
        for name, (story, words) in made.items():
            agent = STORIES[story](InMemorySaver(serde=saver.serde), "T9999999")
            real = steps(agent, "T9999999")
            agent.checkpointer = saver
            copied = steps(agent, name)
            for step, its in zip(copied, real, strict=True):
                assert (step.next, step.state.keys()) == (its.next, its.state.keys())
                assert (len(step.interrupts), len(step.messages)) == (len(its.interrupts), len(its.messages))
                assert sorted(map(len, step.files.values())) == sorted(map(len, its.files.values()))
            for word in set(conversations.WORDS) - set(words.values()):
                assert word not in str(copied)
