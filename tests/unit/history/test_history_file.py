"""`HistoryFile`: calls and records, kept and found again."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import sqlite3
import stat
from pathlib import Path

import failing
import pytest
from eventually import eventually

from fusebackend.base.paths import ROOT, AgentPath
from fusebackend.databases import sqlite
from fusebackend.history.history_file import Filter, HistoryFile, HistoryLocked
from fusebackend.history.records import Image, Kept, Stamp, State
from fusebackend.protocol import Actor
from fusebackend.testing.each import each

NOBODY = Actor()
WHO = Actor(agent="planner", thread="t1", call="tool-7", command="sed -i", uid=1000, pid=4, host="a")
BEFORE = State(stat.S_IFREG | 0o644, 1, 2, 0, 5, 1, 10, -20, {b"user.a\xff": b"\0\1"}, b"")
KEPT = Kept(0, BEFORE, None)
AFTER = Stamp(stat.S_IFREG | 0o600, 1, 2, 7, 99)
MEMORIES = AgentPath("/memories")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "of.history" / "history.db")


@pytest.fixture
def history(path):
    history = HistoryFile(path, itertools.count(1001).__next__)
    yield history
    history.close()


def made(history, *paths, prefix=ROOT, kind="content", who=NOBODY):
    call = history.open_call("verb", "write", who)
    for at in paths:
        history.add(call, prefix, kind, at)
    history.end_call(call)
    return call


def test_a_record_comes_back_as_it_was(history, path):
    call = history.open_call("command", "sed \udcff", WHO)
    image = Image("snapshot", "@20261123\udcff", 9)
    kept = Kept(7, BEFORE, image, identity=b"inode 9")
    number = history.add(call, MEMORIES, "rename", b"/a\xff", kept, to_path=b"/b", node=7, linked=True, after=AFTER)
    history.close()
    again = HistoryFile(path)
    (found,) = again.records(call)
    assert found == again.record(number)
    assert found._replace(time_ns=0) == (
        number, call, 0, MEMORIES, "rename", b"/a\xff", b"/b", 7, True, BEFORE, image, AFTER, b"inode 9",
    )  # fmt: skip
    kept = again.call(call)
    assert (kept.ref, kept.kind, kept.title, kept.actor, kept.changes) == ("c1", "command", "sed \udcff", WHO, 1)
    assert kept.ended_ns is not None
    assert again.images("snapshot") == {"@20261123\udcff"}
    again.close()


def test_records_of_every_shape_in_one_batch(history):
    """They are written by kind and many at a time, and what follows them after them."""
    call = history.open_call("verb", "write", WHO)
    image = Image("file", "7")
    wanted = {}
    for turn in range(150):
        after, kept = AFTER if turn & 4 else None, Kept(turn, BEFORE, image if turn & 2 else None)
        given = {"before": BEFORE, "image": kept.image} if turn & 1 else {"before": None, "image": None}
        number = history.add(
            call, MEMORIES, "content", b"/%d" % turn, kept if turn & 1 else None, node=turn, after=after
        )
        wanted[number] = {**given, "after": after}
        if turn == 100:
            history.set_after({number: None})
            wanted[number]["after"] = None
        if turn == 120:
            history.drop([number])
            del wanted[number]
    found = history.records(call)
    assert [each.number for each in found] == list(wanted)
    for record in found:
        assert {"before": record.before, "image": record.image, "after": record.after} == wanted[record.number]


def test_the_bytes_of_small_files_are_in_their_records(history, monkeypatch):
    monkeypatch.setattr("fusebackend.history.history_file.MOST_HELD_BYTES", 100)
    call = history.open_call("verb", "write", WHO)
    sizes = [0, 60, 60]
    numbers = [
        history.add(call, ROOT, "content", b"/%d" % size, Kept(0, BEFORE, Image("file", "", 5, bytes(size))))
        for size in sizes
    ]
    assert history.written() == numbers[-1] + 1, "so many bytes do not wait in memory"
    assert [record.image for record in history.records(call)] == [Image("file", "", 5)] * len(sizes)
    assert [len(history.image_data(each)) for each in numbers] == sizes
    assert (history.image_bytes, history.verify().problems) == (120, [])
    history.forget_contents([AgentPath("/60")], {})
    assert history.image_bytes == 0
    with pytest.raises(OSError, match="have been deleted"):
        history.image_data(numbers[1])


def test_records_without_a_stamp_are_found_in_portions(history):
    call = history.open_call("verb", "write", WHO)
    for number in range(5):
        history.add(call, MEMORIES, "create", b"/%d" % number)
    history.add(call, MEMORIES, "remove", b"/0", KEPT)
    last = history.add(call, MEMORIES, "rename", b"/1", to_path=b"/new")
    history.set_after({2: AFTER})
    left = [(1, MEMORIES, b"/0"), (3, MEMORIES, b"/2"), (4, MEMORIES, b"/3"), (5, MEMORIES, b"/4")]
    for at_a_time in (2, 5, 9):
        assert [*history.unstamped(call, at_a_time)] == [*left, (last, MEMORIES, b"/new")]
    assert [*history.unstamped(call, 2, all_of_them=True)][1] == (2, MEMORIES, b"/1")


def test_the_file_is_private(history, path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_a_call_that_changes_nothing_leaves_no_trace(history):
    number = history.open_call("verb", "write", NOBODY)
    history.end_call(number)
    assert history.call(number) is None
    assert history.calls() == []


def test_numbers_are_never_used_again(history, path):
    call = made(history, b"/a")
    history.forget([call])
    assert history.calls() == []
    assert history.records(call) == []
    history.close()
    again = HistoryFile(path)
    assert again.open_call("verb", "write", NOBODY) == call + 1
    assert again.add(call + 1, ROOT, "create", b"/a") == 2
    again.close()


def test_a_call_that_a_crash_interrupted_ends_with_its_last_record(history, path):
    call = history.open_call("verb", "write", NOBODY)
    history.add(call, ROOT, "create", b"/a")
    history.flush()
    taken = sqlite3.connect(path)
    copy = path + ".killed"
    taken.execute("VACUUM INTO ?", (copy,))
    taken.close()
    os.mkdir(path + ".d")
    os.rename(copy, path + ".d/history.db")
    again = HistoryFile(path + ".d/history.db")
    found = again.call(call)
    assert found.ended_ns == again.records(call)[0].time_ns
    assert (again.interrupted, again.verify().problems) == ([call], [])
    again.close()


def test_calls_come_newest_first_and_by_their_actor_path_and_time(history):
    first = made(history, b"/a", who=WHO)
    second = made(history, b"/dir/b", b"/dir2", prefix=MEMORIES)
    third = made(history, b"/c")

    assert [call.number for call in history.calls(2)] == [third, second]
    began_ns = history.call(second).began_ns
    for case in each(
        [
            *(({"by": by}, [first]) for by in ("planner", "t1", "tool-7", "sed -i", "1000")),
            ({"by": "plan"}, []),
            *(({"paths": (AgentPath(path),)}, [second]) for path in ("/memories/dir", "/memories/dir/b", "/memories")),
            ({"paths": (AgentPath("/memories/di"),)}, []),
            ({"paths": (ROOT,)}, [third, second, first]),
            ({"paths": (*(AgentPath(f"/none/{n}") for n in range(1_000)), AgentPath("/c"))}, [third]),
            ({"before": third}, [second, first]),
            ({"since_ns": began_ns}, [third, second]),
            ({"until_ns": began_ns}, [first]),
        ]
    ):
        with case as (words, expected):
            assert [call.number for call in history.calls(where=Filter(**words))] == expected


@pytest.mark.parametrize(
    ("kind", "at", "to_path", "touches"),
    [
        ("content", b"/d/f", b"", True),
        ("content", b"/d/f/below", b"", True),
        ("content", b"/d/f2", b"", False),
        ("content", b"/d", b"", False),
        ("remove", b"/d", b"", True),
        ("rename", b"/other", b"/d", True),
        ("rename", b"/other", b"/d/f/x", True),
        ("rename", b"/d/f", b"/g", True),
        ("attributes", b"/d", b"", False),
    ],
)
def test_later_changes_that_touch_a_path(history, kind, at, to_path, touches):
    call = history.open_call("verb", "write", NOBODY)
    number = history.add(call, ROOT, "content", b"/d/f")
    history.add(call, ROOT, "content", b"/d/f")  # of the same call
    made(history, b"/d/f", prefix=MEMORIES)
    for _ in range(2):
        last = history.open_call("verb", "write", NOBODY)
        history.add(last, ROOT, kind, at, to_path=to_path)
    assert history.later(history.record(number), b"/d/f") == (last if touches else None)


def test_two_servers_do_not_share_a_history(history, path):
    with pytest.raises(HistoryLocked) as caught:
        HistoryFile(path)
    assert caught.value.errno == errno.EBUSY
    history.close()
    HistoryFile(path).close()


def test_what_fails_to_open_leaves_nothing_open(history, path, monkeypatch):
    history.close()
    before, connections = os.listdir("/proc/self/fd"), [sqlite.open_file(path, "mode=rw")]
    monkeypatch.setattr(sqlite, "open_file", lambda *_: connections.pop())
    with pytest.raises(IndexError) as failed:  # when it opens a second one
        HistoryFile(path)
    assert os.listdir("/proc/self/fd") == before, failed
    monkeypatch.undo()
    HistoryFile(path).close()


@pytest.mark.parametrize("harm", ["not a database", "another version"])
def test_a_file_that_cannot_be_read_is_set_aside(path, caplog, harm):
    history = HistoryFile(path)
    made(history, b"/a")
    history.close()
    if harm == "not a database":
        Path(path).write_bytes(b"no database" * 1000)
    else:
        newer = sqlite3.connect(path)
        newer.execute("PRAGMA user_version = 99")
        newer.close()
    with caplog.at_level(logging.WARNING):
        again = HistoryFile(path)
    assert again.set_aside is not None
    assert harm in again.set_aside
    assert again.set_aside in caplog.text
    assert os.path.exists(path + ".set-aside")
    call = made(again, b"/b")
    assert [found.number for found in again.calls()] == [call]
    again.close()


def fill_disk(history):
    """Have the file grow no more; returns what gives it room again."""
    history.require()
    (pages,) = history._writer.execute("PRAGMA page_count").fetchone()
    history._writer.execute(f"PRAGMA max_page_count = {pages}")
    return lambda: history._writer.execute("PRAGMA max_page_count = 1000000")


def test_a_full_disk_ends_no_change_and_loses_none(history, caplog):
    free = fill_disk(history)
    call = history.open_call("verb", "write", NOBODY)
    for number in range(200):
        history.add(call, ROOT, "create", b"/%d" % number * 50)
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="can't be written: database or disk is full"):
        history.require()
    assert history.failed is not None
    assert caplog.text.count("is incomplete") == 1
    free()
    history.require()
    assert [each.path for each in history.records(call)] == [b"/%d" % number * 50 for number in range(200)]
    assert history.failed is None
    assert history.gaps([call]) == {}


def test_a_number_of_more_than_64_bits_is_beyond_every_row(history):
    call = made(history, b"/a")
    history.end_call(call)
    assert history.records_after(1 << 70, 10) == []
    assert [found.path for found in history.records_after(-1 << 70, 10)] == [b"/a"]
    assert history.records(1 << 70) == []
    for where in (Filter(before=1 << 70), Filter(since_ns=-1 << 70), Filter(until_ns=1 << 70)):
        assert [found.number for found in history.calls(where=where)] == [call]
    assert history.calls(where=Filter(ended_after_ns=1 << 70)) == []


def test_a_file_that_was_moved_away_takes_records_and_says_so(history, path):
    made(history, b"/a")
    history.require()
    assert history.failed is None
    os.rename(path, path + ".aside")
    made(history, b"/b")
    history.require()
    assert f"its file {path} was moved or deleted" in history.failed
    os.rename(path + ".aside", path)
    made(history, b"/c")
    history.require()
    assert history.failed is None


def test_a_disk_that_fails_at_any_statement_loses_no_record(path, monkeypatch, caplog):
    """Neither in memory, nor a link of the chain."""
    monkeypatch.setattr("fusebackend.history.history_file.WRITE_EVERY_S", 3600)
    disk = failing.Failing(monkeypatch)
    history, calls, expected = HistoryFile(path, itertools.count(1001).__next__), 0, []
    while not expected or disk.hit:
        history.forget(expected[:-3])  # which writes what could not be written, too
        expected = expected[-3:]
        call = history.open_call("verb", "write", WHO)
        for kind in ("create", "content", "remove"):
            kept = KEPT._replace(identity=b"%d" % calls)
            history.add(call, ROOT, kind, b"/%d" % calls, kept, node=calls + 1)
        history.end_call(call)
        expected.append(call)
        with disk.after(calls):
            history.flush()
        calls += 1
    assert calls > 5 and history.failed is None
    assert [each.number for each in history.calls()][::-1] == expected
    assert [len(history.records(call)) for call in expected] == [3] * len(expected)
    assert history.verify().problems == []
    history.close()
    caplog.clear()


def test_a_call_whose_records_are_too_many_for_memory_has_a_gap(history, path, monkeypatch):
    monkeypatch.setattr("fusebackend.history.history_file.MOST_WAITING", 100)
    whole, free = made(history, b"/a"), fill_disk(history)
    call = history.open_call("verb", "write", NOBODY)
    for number in range(200):
        history.add(call, ROOT, "create", b"/%d" % number * 50)
        assert len(history._waiting) <= 102
    free()
    history.add(call, ROOT, "create", b"/last")
    history.close()
    again = HistoryFile(path)
    assert [each.path for each in again.records(call)][-1] == b"/last"
    assert again.gaps([whole, call]) == {call: "the history could not be written (database or disk is full)"}
    again.forget([call])
    assert again.gaps([call]) == {}
    again.close()


def test_a_gap_before_the_first_record_of_a_call_stays_with_the_call(history):
    """It went with the calls that are older, and that of a call without a record was said of every later time."""
    old, empty = made(history, b"/a"), history.open_call("verb", "write", NOBODY)
    call = history.open_call("verb", "write", NOBODY)
    for number in (call, empty):
        history.note_gap(number, "the disk failed")
    history.add(call, ROOT, "create", b"/b")
    history.forget([old])
    assert history.gaps([call]) == {call: "the disk failed"}
    history.end_call(call)
    history.end_call(empty)
    assert [each.number for each in history.calls()] == [call]
    assert history.begin_at(history._time_ns(), "now") == 2
    assert history.verify().problems == []


def test_a_time_at_which_a_deleted_call_went_on_is_not_known(history, path):
    """Also while an older call goes on."""
    history.add(history.open_call("command", "serve", NOBODY), ROOT, "create", b"/a")
    before_ns, gone, after_ns = history._time_ns(), made(history, b"/b"), history._time_ns()
    assert (history.begin_at(before_ns, "T"), history.begin_at(after_ns, "T")) == (1, 2)
    history.forget([gone])
    history.close()
    again = HistoryFile(path)
    with pytest.raises(OSError, match="calls that have changed something since 'T' were forgotten"):
        again.begin_at(before_ns, "T")
    assert again.begin_at(after_ns, "T") == 1
    again.close()


def test_calls_of_another_backend_go(history, path):
    history.bind({ROOT: "sqlite:a", MEMORIES: "memory:"})
    first, second = made(history, b"/a"), made(history, b"/b", prefix=MEMORIES)
    history.bind({ROOT: "sqlite:a", MEMORIES: "memory:"})
    assert len(history.calls()) == 2
    history.bind({ROOT: "sqlite:a", MEMORIES: None})
    assert [call.number for call in history.calls()] == [first]
    history.bind({ROOT: "sqlite:b", MEMORIES: None})
    assert history.calls() == [] and history.call(second) is None


def test_calls_come_in_the_order_of_their_ends(history):
    first, second = history.open_call("verb", "a", NOBODY), history.open_call("verb", "b", NOBODY)
    for number in (first, second):
        history.add(number, ROOT, "create", b"/a")
    history.end_call(second)
    history.end_call(first)
    ended = history.calls(where=Filter(ended_after_ns=0))
    assert [call.number for call in ended] == [second, first]
    assert [call.number for call in history.calls(where=Filter(ended_after_ns=ended[0].ended_ns))] == [first]
    assert list(history.ends(lambda end_ns: end_ns + 1)) == [call.ended_ns for call in ended]
    assert [record.call for record in history.records_after(0, 9)] == [first, second]
    assert [record.call for record in history.records_after(-1, 9)] == [second]


def test_a_clock_that_goes_back_gives_no_two_calls_the_same_end(path):
    history = HistoryFile(path, lambda: 7)
    numbers = [made(history, b"/a") for _ in range(3)]
    assert [call.ended_ns for call in history.calls(where=Filter(ended_after_ns=0))] == [7, 8, 9]
    history.forget(numbers[:2])
    assert (history.forgets, history.forgotten_ns) == (1, 8)
    history.close()


def test_what_was_added_is_written_without_being_asked_for(tmp_path: Path) -> None:
    """The first record of a call, which brings the call along, did not wake the thread that writes."""
    history = HistoryFile(str(tmp_path / "of.history/history.db"))
    history.add(history.open_call("verb", "write", Actor()), ROOT, "create", b"/a")
    reader = sqlite3.connect(history.path)
    eventually(lambda: reader.execute("SELECT count(*) FROM records").fetchone() == (1,), 10)
    reader.close()
    history.close()
