"""The published suite on the head of a thread: written to and read, and read by another backend that may only read."""

from __future__ import annotations

import contextlib
import uuid
from typing import Annotated, Any, TypedDict

import graphs
import pytest
from deepagents.middleware.filesystem import _file_data_delta_reducer
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from rooted import Rooted

from fusebackend.backends import ThreadsBackend
from fusebackend.testing.conformance import BackendConformance, Probe


class State(TypedDict):
    files: Annotated[dict[str, Any], DeltaChannel(_file_data_delta_reducer, snapshot_frequency=50)]


class Place:
    """A checkpoint database with a thread for each case."""

    def __init__(self, kind: str, where: str, saver: Any) -> None:
        graph = StateGraph(State)
        graph.add_node("rest", lambda state: {})
        graph.add_edge(START, "rest")
        self.graph = graph.compile(checkpointer=saver)
        self.open = ThreadsBackend.from_sqlite if kind == "sqlite" else ThreadsBackend.from_postgres
        self.where = where

    def thread(self) -> str:
        name = uuid.uuid4().hex
        self.graph.invoke({"files": {}}, graphs.thread(name))
        return f"/{name}/head"


# By day the suite runs in full over SQLite alone.
KINDS = ["sqlite", pytest.param("postgres", marks=[pytest.mark.services, pytest.mark.configuration])]


@pytest.fixture(scope="module", params=KINDS)
def place(request, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            where = str(tmp_path_factory.mktemp("conformance") / "threads.db")
            saver = stack.enter_context(graphs.sqlite_saver(where))
        else:
            where = stack.enter_context(request.getfixturevalue("postgres").database())
            saver = stack.enter_context(graphs.postgres_saver(where))
        yield Place(request.param, where, saver)


class HeadConformance(BackendConformance):
    def test_a_name_may_be_bytes_that_are_no_text(self, b: Probe) -> None:
        """Keys are texts."""
        (response,) = b.upload_files([("/dir/\udcff", b"x")])
        assert response.error == "Invalid or incomplete multibyte or wide character"
        assert b.read("/\udcff").error == "File '/\udcff' not found"


class TestWritable(HeadConformance):
    @pytest.fixture
    def backend(self, place):
        with place.open(place.where, write="head") as backend:
            yield Rooted(place.thread(), backend, backend)


@pytest.mark.configuration
class TestReplacing(HeadConformance):
    replaces_existing = True

    @pytest.fixture
    def backend(self, place):
        with place.open(place.where, write="head", on_exists="replace") as backend:
            yield Rooted(place.thread(), backend, backend)


@pytest.mark.configuration
class TestReadOnly(HeadConformance):
    """What one backend writes, another one reads that can do nothing else."""

    keeps_empty_directories = False

    @pytest.fixture
    def backend(self, place, monkeypatch):
        with place.open(place.where, write="head") as writer, place.open(place.where) as reader:
            poll = reader.volume._tree.poll
            monkeypatch.setattr(reader.volume._tree, "poll", lambda: poll(now=True))
            yield Rooted(place.thread(), writer, reader)
