"""What callers of deepagents' own backends rely on, asked of ours and of theirs."""

import asyncio
import itertools

import pytest
from for_each import for_each

pytest.importorskip("deepagents")
pytest.importorskip("langgraph.store.memory")

from deepagents.backends import FilesystemBackend as TheirFilesystem
from deepagents.backends import StoreBackend as TheirStore
from deepagents.backends import protocol as theirs
from langgraph.store.memory import InMemoryStore

from fusebackend import text
from fusebackend.backends import BackendProtocol, FilesystemBackend, InMemoryBackend, StoreBackend
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import GrepResult, ReadResult


@pytest.fixture
def both(tmp_path):
    with FilesystemBackend(tmp_path) as ours:
        yield ours, TheirFilesystem(tmp_path)


@pytest.mark.parametrize("context_lines", [0, 1, 2, 100])
@pytest.mark.parametrize("content", ["a\nx1\nb\nc\nx2\nx3\nd\n", "x", "x\n", "a\n\nx\n\n\n", "a\nb\nx"])
def test_grep_shows_lines_beside_a_match(both, tmp_path, content, context_lines):
    (tmp_path / "f.txt").write_text(content)
    ours, their = (backend.grep("x", context_lines=context_lines).matches for backend in both)
    assert ours == their
    assert asyncio.run(both[0].agrep("x", context_lines=context_lines)).matches == ours


def test_a_negative_context_is_an_error_and_no_exception(both):
    assert both[0].grep("x", context_lines=-1).error == "context_lines must not be negative, and is -1"


@pytest.mark.parametrize(
    ("content", "old", "new"),
    [
        ("one\ntwo\nthree\n", "one\r\ntwo", "1\r\n2"),
        ("one\ntwo\n", "one\r\ntwo\r\n", "1\n"),
        ("one\ntwo\n", "one", "1\r\nand a half"),
        ("one\r\ntwo\r\n", "one\ntwo", "1\n2"),
        ("one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2"),
        ("one\r\ntwo\r\n", "one", "1\r\nand a half"),
    ],
)
def test_an_edit_in_crlf_is_made_and_keeps_the_files_own_line_ends(both, tmp_path, content, old, new):
    """deepagents leaves LF in every file it edits; there ours differ on purpose."""
    path = tmp_path / "f.txt"
    results = []
    for backend in both:
        path.write_bytes(content.encode())
        assert backend.edit("/f.txt", old, new).occurrences == 1
        results.append(path.read_bytes())
    ours, their = results
    assert ours.replace(b"\r\n", b"\n") == their
    assert (b"\r\n" in ours) is ("\r\n" in content) and ours.count(b"\r\n") in (0, ours.count(b"\n"))


def test_a_window_that_theirs_refuses_ours_refuses():
    some = (None, 0, 1, 2, 3)
    for start, end, total, following in itertools.product(some, repeat=4):
        window = {"start_line": start, "end_line": end, "total_lines": total, "next_offset": following}
        for extra in ({}, {"no_lines_requested": True}, {"error": "x"}, {"error": "x", "no_lines_requested": True}):
            assert refused(ReadResult, **window, **extra) is refused(theirs.ReadResult, **window, **extra), (
                window,
                extra,
            )


def refused(kind, **fields):
    try:
        kind(**fields)
    except ValueError:
        return True
    return False


def test_a_backend_whose_window_makes_no_sense_is_read_without_it(caplog):
    class Wrong:
        def ls(self, path):
            return {"entries": []}

        def read(self, file_path, offset=0, limit=2000):
            return {"file_data": {"content": "a\n", "encoding": "utf-8"}, "start_line": 3, "end_line": 1}

    result = AgentFace(Wrong(), "it").read("/f")
    assert result.file_data["content"] == "a\n" and result.start_line is None
    assert "lines 3 to 1" in caplog.text


def test_agrep_with_max_count_of_a_child_that_knows_none():
    class Old(BackendProtocol):
        def grep(self, pattern, path=None, glob=None):
            return GrepResult(matches=[{"path": f"/{number}", "line": 1, "text": pattern} for number in range(5)])

    for most, shown in ((2, 2), (5, 5), (None, 5)):
        found = asyncio.run(Old().agrep("x", max_count=most))
        assert [match["path"] for match in found.matches] == [f"/{number}" for number in range(shown)]
        assert found.truncated is (shown < 5)
    kept = InMemoryBackend()
    kept.write("/f", "x\nx\n")
    assert asyncio.run(kept.agrep("x", max_count=1)).truncated


def test_a_video_that_is_too_large_is_an_error(both, tmp_path, monkeypatch):
    (tmp_path / "v.mp4").write_bytes(b"12345")
    assert both[0].read("/v.mp4").file_data["encoding"] == "base64"
    monkeypatch.setattr(text, "MAX_VIDEO_BYTES", 4)
    monkeypatch.setattr("deepagents.backends.filesystem.MAX_VIDEO_INPUT_BYTES", 4)
    assert both[0].read("/v.mp4").error == both[1].read("/v.mp4").error
    assert text.read_bytes("/v.mp4", b"12345").error == both[1].read("/v.mp4").error
    (tmp_path / "p.png").write_bytes(b"12345")
    assert both[0].read("/p.png").error is None


@for_each("label", ["*", "a*", "a?", "[a]", "{a,b}", "a b", "한국어", "", "a/b", 7, None])
def test_a_computed_namespace_has_no_label_that_theirs_refuses(label):
    store = InMemoryStore()
    ours = StoreBackend(store, namespace=lambda _: ("users", label))
    assert ours.write("/f", "x").error is not None and ours.ls("/").error is not None
    with pytest.raises((ValueError, TypeError)):
        TheirStore(store=store, namespace=lambda _: ("users", label)).ls("/")
    assert not store.list_namespaces()


def test_a_computed_namespace_that_theirs_take_is_taken():
    label = "Ann-Marie_1@x+y:z~"
    store = InMemoryStore()
    assert StoreBackend(store, namespace=lambda _: ("users", label)).write("/f", "x\n").error is None
    assert TheirStore(store=store, namespace=lambda _: ("users", label)).read("/f").file_data["content"] == "x\n"


def test_a_directory_of_a_store_is_deleted_in_one_batch():
    class Counting(InMemoryStore):
        batches: list = []

        def batch(self, ops):
            self.batches.append([type(op).__name__ for op in ops])
            return super().batch(ops)

    store = Counting()
    backend = StoreBackend(store, namespace=("n",))
    backend.upload_files([(f"/d/{number}", b"x") for number in range(50)] + [("/kept", b"x")])
    store.batches.clear()
    assert backend.delete("/d").error is None
    puts = [batch for batch in store.batches if "PutOp" in batch]
    assert puts == [["PutOp"] * 50]
    assert [info["path"] for info in backend.glob("*").matches] == ["/kept"]
