"""`anchors.py`: ends of the hash chain, kept elsewhere, and what they find."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from eventually import eventually
from services.s3 import Service

from fusebackend.base.paths import ROOT
from fusebackend.history import anchors
from fusebackend.history.anchors import Anchoring, BucketPlace, FilePlace, JournalPlace, Place, place_of
from fusebackend.history.chain import Position, after, anchor_of
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.masking import LogOptions
from fusebackend.protocol import Actor

MOUNT = "/mnt/an agent\n\udcff"
FIRST, SECOND = f"1:{'ab' * 16}", f"20:{'cd' * 16}"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryFile]:
    history = HistoryFile(str(tmp_path / "of.history/history.db"))
    yield history
    history.close()


def change(history: HistoryFile, times: int = 1) -> None:
    call = history.open_call("verb", "write", Actor())
    for _ in range(times):
        history.add(call, ROOT, "create", b"/a")
    history.end_call(call)


class TestPlaces:
    @pytest.fixture(params=["file", "journald", "s3"])
    def place(self, request: pytest.FixtureRequest) -> Place:
        made: Place = request.getfixturevalue(request.param)
        return made

    @pytest.fixture
    def file(self, tmp_path: Path) -> Place:
        place = place_of(f"file:{tmp_path}/anchors")
        assert isinstance(place, FilePlace)
        return place

    @pytest.fixture
    def journald(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
        """STAND-IN for systemd's journal: its socket, which keeps what it is sent, and a `journalctl` that selects by
        fields as the real one does (journalctl(1)). There is no journald where the tests run."""
        address, kept, bin = tmp_path / "journal.socket", tmp_path / "kept", tmp_path / "bin"
        bin.mkdir()
        (bin / "journalctl").write_text(
            "#!/usr/bin/env python3\n"
            "import json, sys\n"
            "wanted = dict(word.split('=', 1) for word in sys.argv[1:] if not word.startswith('-'))\n"
            "assert '--output=json' in sys.argv and '--output-fields=FUSEBACKEND_ANCHOR' in sys.argv\n"
            f"for line in open({str(kept)!r}):\n"
            "    entry = json.loads(line)\n"
            "    if all(entry.get(key) == value for key, value in wanted.items()):\n"
            "        print(json.dumps({'FUSEBACKEND_ANCHOR': entry['FUSEBACKEND_ANCHOR']}))\n"
        )
        (bin / "journalctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
        monkeypatch.setattr(anchors, "JOURNAL", str(address))
        kept.touch()

        def serve() -> None:
            while (sent := journal.recv(65536)) != b"end":
                entry = dict(line.split("=", 1) for line in sent.decode().splitlines())
                with kept.open("a") as file:
                    file.write(json.dumps({**entry, "_UID": str(os.geteuid())}) + "\n")
            journal.close()

        journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        journal.bind(str(address))
        thread = threading.Thread(target=serve)
        thread.start()
        yield place_of("journald")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", str(address))
        thread.join()

    @pytest.fixture
    def s3(self, seaweedfs: Service) -> Iterator[Place]:
        with seaweedfs.bucket() as bucket:
            yield place_of(bucket.url("anchors"))

    def test_what_is_written_is_read(self, place: Place) -> None:
        for mount, anchor in ((MOUNT, FIRST), ("/mnt/other", SECOND), (MOUNT, SECOND)):
            place.write(mount, anchor)
        eventually(lambda: sorted(place.read(MOUNT), key=anchor_of) == [FIRST, SECOND], 10)
        assert place.read("/mnt/other") == [SECOND]
        assert place.read("/mnt") == []

    def test_lines_of_a_file_that_are_none_count_for_nothing(self, file: FilePlace) -> None:
        file.write("/m", FIRST)
        with open(file.path, "a") as torn:
            torn.write("2026-11-23T17:45:00Z 2:ab\n\udcff".encode("utf-8", "surrogateescape").decode("latin-1"))
        file.write("/m", SECOND)
        assert FIRST in file.read("/m")
        lines = Path(file.path).read_text().splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ 1:(ab){16} /m", lines[0])
        assert os.stat(file.path).st_mode & 0o777 == 0o600

    def test_what_is_no_file_is_an_error(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        os.symlink("elsewhere", tmp_path / "link")
        for name in ("fifo", "link", "none/file", "."):
            with pytest.raises(OSError):
                FilePlace(f"{tmp_path}/{name}").write("/m", FIRST)
        assert not (tmp_path / "elsewhere").exists()

    def test_without_a_journal_it_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(anchors, "JOURNAL", str(tmp_path / "none"))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(OSError, match="there is no journal at"):
            JournalPlace().write("/m", FIRST)
        with pytest.raises(OSError, match="journalctl is not installed"):
            JournalPlace().read("/m")

    def test_a_bucket_that_is_not_there_is_an_error(self, seaweedfs: Service) -> None:
        with seaweedfs.bucket() as bucket:
            url = bucket.url("anchors")
        with pytest.raises(OSError):
            BucketPlace(url).write("/m", FIRST)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("file:anchors", "anchor = 'file:anchors': give an absolute path"),
            ("file", "anchor = 'file': give journald, file:/PATH or s3://BUCKET/PREFIX"),
            ("syslog", "anchor = 'syslog': give journald"),
            ("sqlite:/x", "anchor = 'sqlite:/x': give journald"),
            ("s3:", "'s3:' is incomplete"),
        ],
    )
    def test_what_is_no_place_is_a_line(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=re.escape(says)):
            LogOptions.of(anchor=text)


class Kept:
    """A place in memory; while `error` is set, nothing can be written."""

    name = "memory"

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.error: OSError | None = None
        self.wait: Callable[[], object] = lambda: None

    def write(self, mountpoint: str, anchor: str) -> None:
        self.wait()
        if self.error is not None:
            raise self.error
        self.kept.append(anchor)

    def read(self, mountpoint: str) -> list[str]:
        return self.kept


def positions(place: Kept) -> list[Position]:
    return [Position(*anchor_of(each)) for each in place.kept]


class TestAnchoring:
    def test_begin_interval_and_end(self, history: HistoryFile) -> None:
        place = Kept()
        anchoring = Anchoring(history, place, "/m", every_s=0.02)
        assert anchoring.start() is None
        assert positions(place) == [(0, bytes(16))]
        change(history)
        eventually(lambda: len(place.kept) > 1, 10)
        eventually(lambda: positions(place)[-1].link == 3, 10)
        call = history.open_call("verb", "write", Actor())
        history.add(call, ROOT, "create", b"/b")
        history.close()
        anchoring.close()
        anchoring.close()
        assert positions(place)[-1] == history.end
        assert history.end.link == 6
        assert len(set(place.kept)) == len(place.kept), "an end that is kept already was written again"

    def test_many_links_do_not_wait_for_the_interval(
        self, history: HistoryFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "LOOK_S", 0.01)
        place = Kept()
        anchoring = Anchoring(history, place, "/m", every_s=3600)
        anchoring.start()
        change(history, anchors.MOST_LINKS)
        eventually(lambda: positions(place)[-1].link >= anchors.MOST_LINKS, 10)
        anchoring.close()

    def test_a_place_that_fails_is_told_once_and_tried_again(
        self, history: HistoryFile, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = Kept()
        place.error = OSError(28, "No space left on device")
        anchoring = Anchoring(history, place, "/m", every_s=0.01)
        assert anchoring.start() == "the log has no anchor in memory: No space left on device"
        assert anchoring.describe() == {"place": "memory", "link": None, "failed": "No space left on device"}
        change(history)
        history.flush()
        place.error = None
        eventually(lambda: place.kept and positions(place)[-1].link == 3, 10)
        assert anchoring.describe() == {"place": "memory", "link": 3, "failed": None}
        anchoring.close()
        assert len([each for each in caplog.records if "can't be kept" in each.message]) == 1

    def test_a_place_that_hangs_holds_nothing_up(self, history: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(anchors, "PATIENCE_S", 0.05)
        place, go_on = Kept(), threading.Event()
        place.wait = go_on.wait
        anchoring = Anchoring(history, place, "/m", every_s=0.01)
        assert anchoring.start() == "the log has no anchor in memory: no answer in time"
        anchoring.close()
        go_on.set()

    def test_the_end_is_on_the_disk_before(self, history: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        change(history)
        assert history.durable_end() == history.end == (3, history.end.head)
        assert synced == [history.path + "-wal"]


def test_a_tail_that_is_cut_off_and_a_new_one_in_its_place(tmp_path: Path) -> None:
    path, place = str(tmp_path / "of.history/history.db"), Kept()
    history = HistoryFile(path)
    for _ in range(4):
        change(history)
    place.write("/m", f"{history.durable_end().link}:{history.end.head.hex()}")
    history.close()
    connection = sqlite3.connect(path)  # an attacker who knows the program, with the rights of its user
    with connection:
        (cut,) = connection.execute("SELECT link FROM calls WHERE number = 3").fetchone()
        for table in ("calls", "records", "events"):
            connection.execute(f"DELETE FROM {table} WHERE link >= ?", (cut,))
        digests = [
            row
            for (row,) in connection.execute(
                "SELECT digest FROM (SELECT link, digest FROM calls UNION ALL SELECT link, digest FROM records "
                "UNION ALL SELECT link, digest FROM events) ORDER BY link"
            )
        ]
        head = bytes(16)
        for each in digests:
            head = after(head, each)
        connection.execute("UPDATE chain SET link = ?, head = ?", (cut - 1, head))
    connection.close()
    history = HistoryFile(path)
    assert history.verify().problems == []
    seen = dict(map(anchor_of, place.kept))
    assert history.verify(seen).problems == ["the last 6 links are cut off: the anchor has seen link 12"]
    for _ in range(3):
        change(history)
    assert history.verify().problems == []
    assert history.verify(seen).problems == ["what was written up to link 12 is not what the anchor has seen"]
    history.close()
