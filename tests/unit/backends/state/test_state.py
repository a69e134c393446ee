"""`StateBackend`: files in `runtime.state["files"]`, in both formats, with the updates a graph needs."""

from functools import partial
from types import SimpleNamespace

import pytest
from for_each import for_each
from together import together

from fusebackend.backends import StateBackend
from fusebackend.remote.files_update import apply_files_update
from fusebackend.testing.conformance import BackendConformance


class TestConformance(BackendConformance):
    keeps_empty_directories = False

    @pytest.fixture
    def backend(self):
        return StateBackend(SimpleNamespace(state={}))


@pytest.mark.configuration
class TestConformanceOfV1(BackendConformance):
    keeps_empty_directories = False

    @pytest.fixture
    def backend(self):
        return StateBackend(file_format="v1")


@pytest.mark.configuration
class TestConformanceOfAView(BackendConformance):
    keeps_empty_directories = False

    @pytest.fixture
    def backend(self):
        return below(StateBackend())


def below(backend):
    """A directory of a state, as a route has it."""
    return StateBackend(backend.runtime).beside(backend, "/memories")


def runtime_with(**files):
    return SimpleNamespace(state={"messages": [], "files": {f"/{name}": data for name, data in files.items()}})


@pytest.fixture
def backend():
    return StateBackend(SimpleNamespace(state={"messages": []}))


def stored(backend):
    return backend.runtime.state.get("files", {})


def test_a_write_returns_the_update_that_a_graph_merges(backend):
    result = backend.write("/notes/a.txt", "one\ntwo\n")
    assert result.error is None and result.path == "/notes/a.txt"
    (record,) = result.files_update.values()
    assert record["content"] == "one\ntwo\n" and record["encoding"] == "utf-8"
    assert record["created_at"] == record["modified_at"]
    again = dict(stored(backend))
    apply_files_update(backend.runtime, result.files_update)
    assert stored(backend) == again  # merging what is there already changes nothing


def test_a_write_is_seen_at_once_and_no_dict_that_somebody_holds_is_changed(backend):
    backend.write("/a", "x")
    before = stored(backend)
    backend.write("/b", "y")
    assert "/b" not in before
    assert [info["path"] for info in backend.ls("/").entries] == ["/a", "/b"]
    assert backend.runtime.state["messages"] == []


def test_v1_is_written_on_request_and_its_trailing_newline_survives():
    backend = StateBackend(SimpleNamespace(state={}), file_format="v1")
    update = backend.write("/a", "one\ntwo\n").files_update
    assert update["/a"]["content"] == ["one", "two", ""] and "encoding" not in update["/a"]
    assert backend.download_files(["/a"])[0].content == b"one\ntwo\n"
    backend.upload_files([("/b", b"\xff\x00")])
    assert stored(backend)["/b"]["encoding"] == "base64"  # v1 has no word for bytes


def test_both_formats_are_read_and_a_write_migrates():
    runtime = runtime_with(
        old={"content": ["line1", "line2"], "created_at": "2025-01-01T00:00:00", "modified_at": "2025-01-01T00:00:00"},
        bare={"content": "no times"},
        bytes={"content": "/wA=", "encoding": "base64"},
    )
    backend = StateBackend(runtime)
    assert str(backend.read("/old")) == "     1\tline1\n     2\tline2"
    assert [r.content for r in backend.download_files(["/bare", "/bytes"])] == [b"no times", b"\xff\x00"]
    result = backend.edit("/old", "line2", "second")
    assert result.occurrences == 1
    record = result.files_update["/old"]
    assert record["content"] == "line1\nsecond" and record["created_at"] == "2025-01-01T00:00:00"
    assert record["modified_at"] > record["created_at"]


def test_an_upload_keeps_when_the_file_was_created_and_a_batch_fails_item_by_item():
    backend = StateBackend()
    created = backend.write("/a/f", "x").files_update["/a/f"]["created_at"]
    answers = backend.upload_files([("/a/f", b"y"), ("/a", b"z"), ("/a/f/g", b"z"), ("/..", b""), ("/n", "text")])
    assert [a.path for a in answers] == ["/a/f", "/a", "/a/f/g", "/..", "/n"]
    assert [a.error for a in answers] == [
        None, "is_directory", "invalid_path", "invalid_path", "content must be bytes, not str",
    ]  # fmt: skip
    assert answers[0].files_update["/a/f"]["created_at"] == created
    assert [a.files_update for a in answers[1:]] == [None] * 4


def test_without_a_runtime_the_state_is_its_own():
    first, second = StateBackend(), StateBackend()
    first.write("/a", "1")
    assert "1" in first.read("/a")
    assert second.read("/a").error == "File '/a' not found"


def test_a_write_that_is_refused_has_no_update_and_one_that_replaces_has(backend):
    backend.write("/a", "1")
    assert backend.write("/a", "2").files_update is None
    assert "/a" in StateBackend(backend.runtime, on_exists="replace").write("/a", "2").files_update


def test_delete_maps_paths_to_none_and_takes_a_directory_whole(backend):
    for path in ("/d/a", "/d/e/b", "/d2"):
        backend.write(path, "x")
    result = backend.delete("/d")
    assert result.files_update == {"/d/a": None, "/d/e/b": None}
    assert list(stored(backend)) == ["/d2"]


def test_move_is_one_update_and_keeps_the_record(backend):
    backend.write("/d/a", "x")
    record = stored(backend)["/d/a"]
    result = backend.move("/d", "/new/place")
    assert result.path == "/new/place"
    assert result.files_update == {"/d/a": None, "/new/place/a": record}
    assert stored(backend) == {"/new/place/a": record}


def test_keys_that_are_no_paths_have_names():
    runtime = SimpleNamespace(state={"files": {}})
    odd = {"a.txt": "relative", "//b": "slashes", "/c/../d": "dots", "/../e": "above", 7: "no string", "/f/": "slash"}
    runtime.state["files"].update({key: {"content": value} for key, value in odd.items()})
    backend = StateBackend(runtime)
    found = ["/%/b", "/%2E%2E/e", "/a.txt", "/c/%2E%2E/d", "/f/%"]
    assert sorted(info["path"] for info in backend.glob("/**").matches) == found
    assert "relative" in backend.read("/a.txt")
    result = backend.edit("/a.txt", "relative", "absolute")
    assert result.files_update["a.txt"] is None and result.files_update["/a.txt"]["content"] == "absolute"
    assert "a.txt" not in stored(backend)
    assert backend.delete("/c").files_update == {"/c/../d": None}


def test_a_file_that_is_a_directory_too_has_two_names():
    runtime = SimpleNamespace(state={"files": {key: {"content": key} for key in ("/a", "/a/b")}})
    backend = StateBackend(runtime)
    assert sorted(info["path"] for info in backend.ls("/").entries) == ["/a%=", "/a/"]
    assert [found.content for found in backend.download_files(["/a", "/a%="])] == [b"/a", b"/a"]


@for_each(
    "record", [None, "text", {}, {"content": 5}, {"content": ["a", 5]}, {"content": "?", "encoding": "base64"},
               {"content": "x", "encoding": "latin-1"}],
)  # fmt: skip
def test_a_record_that_is_no_file_data_is_an_error_of_that_file_alone(record):
    backend = StateBackend(SimpleNamespace(state={"files": {"/bad": record, "/good": {"content": "TODO"}}}))
    assert backend.read("/bad").error.startswith("File '/bad': ")
    assert backend.download_files(["/bad", "/good"])[0].error
    assert backend.edit("/bad", "a", "b").error
    assert [info["path"] for info in backend.ls("/").entries] == ["/bad", "/good"]
    assert [m["path"] for m in backend.grep("TODO").matches] == ["/good"]
    assert backend.upload_files([("/bad", b"mended")])[0].error is None
    assert "mended" in backend.read("/bad")


def test_a_state_that_is_an_object_works_too():
    runtime = SimpleNamespace(state=SimpleNamespace(files=None))
    backend = StateBackend(runtime)
    backend.write("/a", "x")
    assert list(runtime.state.files) == ["/a"]


def test_a_view_below_a_prefix_speaks_in_its_own_paths():
    backend = StateBackend()
    view = below(backend)
    assert view.write("/n.md", "x").files_update.keys() == {"/n.md"}
    backend.write("/other", "y")
    assert list(stored(backend)) == ["/memories/n.md", "/other"]
    assert [info["path"] for info in view.ls("/").entries] == ["/n.md"]
    assert view.glob("*").matches[0]["path"] == "/n.md"
    assert view.move("/n.md", "/m.md").files_update.keys() == {"/n.md", "/m.md"}
    assert list(stored(backend)) == ["/other", "/memories/m.md"]
    assert view.delete("/m.md").files_update == {"/m.md": None}


def test_concurrent_writers_over_one_state_lose_nothing():
    runtime = SimpleNamespace(state={})

    def write(number):
        for index in range(50):
            assert StateBackend(runtime).write(f"/{number}/{index}", "x").error is None

    together(*(partial(write, number) for number in range(4)))
    assert len(runtime.state["files"]) == 200


@pytest.mark.parametrize("options", [{"file_format": "v3"}, {"on_exists": "append"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        StateBackend(**options)


def test_a_dict_that_others_change_in_place_is_seen_as_it_is():
    runtime = SimpleNamespace(state={"files": {"/d/a": {"content": "1"}}})
    backend = StateBackend(runtime)
    assert [info["path"] for info in backend.ls("/d").entries] == ["/d/a"]
    del runtime.state["files"]["/d/a"]
    runtime.state["files"]["/e/b"] = {"content": "2"}  # as many keys as before
    assert [info["path"] for info in backend.ls("/").entries] == ["/e/"]
    backend.write("/d", "now a file")
    assert [info["path"] for info in backend.glob("*").matches] == ["/d", "/e/b"]
