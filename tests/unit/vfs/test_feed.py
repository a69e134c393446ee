"""Changes of the mounted tree as events: from the kernel, from agents, in order, once, and never waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eventually import eventually
from raising import raising
from seed_backends import DuckBackend
from smallkernel import SmallKernel
from together import beside

from fusebackend.backends.directory.backend import FilesystemBackend, LocalShellBackend
from fusebackend.backends.memory import InMemoryBackend
from fusebackend.backends.state.backend import StateBackend
from fusebackend.base.paths import PathError
from fusebackend.composite.backend import CompositeBackend
from fusebackend.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, Change, FileEvent
from fusebackend.testing.each import each
from fusebackend.vfs.inodes import OTHER_NAMES, ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.watch import feed as feed_module
from fusebackend.vfs.watch import feed as watch_module
from fusebackend.vfs.watch.feed import Watch

Step = tuple[Any, ...]
"""A face, its verb, and the arguments. Of the kernel, a file is written to through the handle of this name."""


class Mount:
    """A composite, a file system over it and a kernel before that, with one watch of everything."""

    def __init__(self, default: Any, routes: dict[str, Any] | None = None) -> None:
        self.agent = CompositeBackend(default, routes or {})
        self.filesystem = FileSystem.of(self.agent)
        self.kernel = SmallKernel(self.filesystem)
        self.watch = self.filesystem.feed.watch("/")

        self.handles: dict[str, int] = {}

    def told(self) -> list[str]:
        """What was told since the last time: kind, source, path, and where from if it has moved."""
        return [
            f"{event.kind} {event.source} {event.path} {event.moved_from or ''}".strip() for event in taken(self.watch)
        ]

    def make(self, steps: list[Step]) -> None:
        for face, verb, *words in steps:
            options = words.pop() if words and isinstance(words[-1], dict) else {}
            if face == "agent":
                getattr(self.agent, verb)(*words)
            elif verb in ("create", "open"):
                self.handles[words[0]] = getattr(self.kernel, verb)(*words)
            elif verb == "write":
                self.kernel.write(self.handles[words[0]], words[1])
            else:
                getattr(self.kernel, verb)(*words, **options)


def taken(watch: Watch) -> list[FileEvent]:
    events = []
    while (event := watch.get(0)) is not None:
        events.append(event)
    return events


@pytest.fixture
def mount() -> Iterator[Mount]:
    mount = Mount(InMemoryBackend(), {"/m/": InMemoryBackend(), "/a/b/": InMemoryBackend()})
    yield mount
    mount.filesystem.detach()


@pytest.fixture
def kernel(mount: Mount) -> SmallKernel:
    return mount.kernel


@pytest.fixture
def agent(mount: Mount) -> CompositeBackend:
    return mount.agent


TOLD: dict[str, list[tuple[list[Step], list[str]]]] = {
    "what is made": [
        ([("kernel", "mkdir", "/d"), ("kernel", "create", "/d/f"), ("kernel", "symlink", "/d/s", b"f"),
          ("kernel", "mknod", "/m/pipe", 0o10600), ("kernel", "link", "/d/f", "/d/l")],
         ["created mount /d/", "created mount /d/f", "created mount /d/s", "created mount /m/pipe",
          "created mount /d/l"]),
    ],
    "what goes": [
        ([("kernel", "mkdir", "/m/d"), ("kernel", "put", "/m/d/f", b"")],
         ["created mount /m/d/", "created mount /m/d/f"]),
        ([("kernel", "unlink", "/m/d/f"), ("kernel", "rmdir", "/m/d")],
         ["deleted mount /m/d/f", "deleted mount /m/d/"]),
    ],
    "what changes": [
        ([("kernel", "create", "/f"), ("kernel", "write", "/f", b"")], ["created mount /f"]),
        ([("kernel", "write", "/f", b"bytes")], ["modified mount /f"]),
        ([("kernel", "setattr", "/f", {"size": 2})], ["modified mount /f"]),
        ([("kernel", "setattr", "/f", {"mode": 0o600}), ("kernel", "setxattr", "/f", b"user.x", b"y")],
         ["attributes mount /f"]),
        ([("kernel", "open", "/f", os.O_WRONLY | os.O_TRUNC)], ["modified mount /f"]),
        ([("kernel", "setattr", "/m", {"mode": 0o700}), ("kernel", "setattr", "/", {"mode": 0o700})],
         ["attributes mount /m/", "attributes mount /"]),
    ],
    "what moves": [
        ([("kernel", "mkdir", "/d"), ("kernel", "mkdir", "/d/e"), ("kernel", "mkdir", "/x"),
          ("agent", "upload_files", [("/d/e/f", b"1"), ("/g", b"2")])],
         ["created mount /d/", "created mount /d/e/", "created mount /x/", "created api /d/e/f", "created api /g"]),
        ([("kernel", "rename", "/d", "/x/d"), ("kernel", "put", "/x/d/e/f", b"3"),
          ("kernel", "rename", "/g", "/x/d/e/f")],
         ["moved mount /x/d/ /d/", "modified mount /x/d/e/f", "moved mount /x/d/e/f /g"]),
    ],
    "two that trade places": [
        ([("kernel", "mkdir", "/d"), ("kernel", "create", "/d/f"), ("kernel", "create", "/g")],
         ["created mount /d/", "created mount /d/f", "created mount /g"]),
        ([("kernel", "rename", "/d", "/g", RENAME_EXCHANGE), ("kernel", "write", "/d/f", b"x"),
          ("kernel", "write", "/g", b"y")],
         ["exchanged mount /g/ /d", "modified mount /g/f", "modified mount /d"]),
    ],
    "two names of one file, which a rename leaves": [
        ([("kernel", "create", "/f"), ("kernel", "link", "/f", "/l"), ("kernel", "rename", "/f", "/l")],
         ["created mount /f", "created mount /l"]),
    ],
    "a file has the name it was last reached by": [
        ([("kernel", "create", "/f"), ("kernel", "link", "/f", "/l"), ("kernel", "write", "/f", b"1")],
         ["created mount /f", "created mount /l", "modified mount /l"]),
        ([("kernel", "unlink", "/l"), ("kernel", "write", "/f", b"2")], ["deleted mount /l", "modified mount /f"]),
        ([("kernel", "rename", "/f", "/g"), ("kernel", "write", "/f", b"3")],
         ["moved mount /g /f", "modified mount /g"]),
    ],
    "a name of a file is known however often its others are used since": [
        ([("kernel", "create", "/kept"), ("kernel", "link", "/kept", "/f"), ("kernel", "link", "/kept", "/l"),
          *OTHER_NAMES * [("kernel", "invalidate_entry", ROOT_INODE, b"f"), ("kernel", "inode", "/f"),
                          ("kernel", "invalidate_entry", ROOT_INODE, b"l"), ("kernel", "inode", "/l")],
          ("agent", "delete", "/f"), ("agent", "delete", "/l"), ("kernel", "write", "/kept", b"1")],
         ["created mount /kept", "created mount /f", "created mount /l", "deleted api /f", "deleted api /l",
          "modified mount /kept"]),
    ],
    "a file without a name": [
        ([("kernel", "create", "/f"), ("kernel", "unlink", "/f"), ("kernel", "write", "/f", b"1")],
         ["created mount /f", "deleted mount /f"]),
        ([("kernel", "put", "/f", b""), ("kernel", "write", "/f", b"2")], ["created mount /f"]),
    ],
    "a way that becomes real is nothing new": [
        ([("kernel", "put", "/a/f", b"")], ["created mount /a/f"]),
        ([("kernel", "setattr", "/a", {"mode": 0o700})], ["attributes mount /a/"]),
    ],
    "verbs of agents": [
        ([("agent", "write", "/m/d/e/f.txt", "one\n")],
         ["created api /m/d/", "created api /m/d/e/", "created api /m/d/e/f.txt"]),
        ([("agent", "edit", "/m/d/e/f.txt", "one", "two"),
          ("agent", "upload_files", [("/m/d/e/f.txt", b"x"), ("/new", b"y")])],
         ["modified api /m/d/e/f.txt", "created api /new"]),
        ([("agent", "move", "/m/d", "/m/z/y"), ("agent", "move", "/new", "/newer")],
         ["created api /m/z/", "moved api /m/z/y/ /m/d/", "moved api /newer /new"]),
        ([("agent", "delete", "/m/z")],
         ["deleted api /m/z/y/e/f.txt", "deleted api /m/z/y/e/", "deleted api /m/z/y/", "deleted api /m/z/"]),
        ([("agent", "write", "/m/no", "x"), ("agent", "write", "/m/no", "x"), ("agent", "edit", "/none", "a", "b"),
          ("agent", "delete", "/none"), ("agent", "ls", "/")],
         ["created api /m/no"]),
    ],
    "links of agents are told by what they lead to": [
        ([("kernel", "mkdir", "/d"), ("kernel", "symlink", "/s", b"d/../d")],
         ["created mount /d/", "created mount /s"]),
        ([("agent", "write", "/s/f", "one"), ("agent", "edit", "/s/f", "one", "two")],
         ["created api /d/f", "modified api /d/f"]),
    ],
    # The kernel does not hear where an open file has gone, and goes on writing.
    "names follow what agents move": [
        ([("kernel", "mkdir", "/d"), ("kernel", "mkdir", "/d/e"), ("kernel", "mkdir", "/x"),
          ("kernel", "create", "/d/e/f")],
         ["created mount /d/", "created mount /d/e/", "created mount /x/", "created mount /d/e/f"]),
        ([("agent", "move", "/d", "/p/q/d"), ("kernel", "write", "/d/e/f", b"1")],
         ["created api /p/", "created api /p/q/", "moved api /p/q/d/ /d/", "modified mount /p/q/d/e/f"]),
        ([("kernel", "rename", "/p/q", "/x/q"), ("kernel", "write", "/d/e/f", b"2")],
         ["moved mount /x/q/ /p/q/", "modified mount /x/q/d/e/f"]),
        ([("agent", "move", "/x", "/y"), ("kernel", "write", "/d/e/f", b"3")],
         ["moved api /y/ /x/", "modified mount /y/q/d/e/f"]),
        ([("kernel", "forget"), ("agent", "move", "/y/q/d/e/f", "/top"), ("kernel", "write", "/d/e/f", b"4")],
         ["moved api /top /y/q/d/e/f", "modified mount /top"]),
    ],
    "names follow what agents have moved into directories that trade places": [
        ([("kernel", "mkdir", "/d"), ("kernel", "mkdir", "/x"), ("kernel", "create", "/d/f"),
          ("kernel", "create", "/g"), ("agent", "move", "/d", "/p/d"), ("agent", "move", "/g", "/x/y/g")],
         ["created mount /d/", "created mount /x/", "created mount /d/f", "created mount /g", "created api /p/",
          "moved api /p/d/ /d/", "created api /x/y/", "moved api /x/y/g /g"]),
        ([("kernel", "rename", "/p", "/x", RENAME_EXCHANGE), ("kernel", "write", "/d/f", b"1"),
          ("kernel", "write", "/g", b"2")],
         ["exchanged mount /x/ /p/", "modified mount /x/d/f", "modified mount /p/y/g"]),
    ],
}  # fmt: skip


def test_what_is_told() -> None:
    """One request, one event, under the path that the agent knows."""
    for case in each(TOLD):
        with case as phases:
            mount = Mount(InMemoryBackend(), {"/m/": InMemoryBackend(), "/a/b/": InMemoryBackend()})
            for steps, expected in phases:
                mount.make(steps)
                assert mount.told() == expected
            mount.filesystem.detach()


class TestTheMount:
    def test_what_only_looks_or_fails_tells_nothing(self, mount: Mount, kernel: SmallKernel) -> None:
        kernel.put("/f", b"x")
        kernel.mkdir("/d")
        mount.told()
        kernel.close(kernel.open("/f", os.O_RDONLY))
        for refused in (
            lambda: kernel.mkdir("/d"),
            lambda: kernel.rmdir("/m"),
            lambda: kernel.rename("/f", "/m/f"),
            lambda: kernel.rename("/f", "/d", RENAME_NOREPLACE),
            lambda: kernel.unlink("/none"),
        ):
            with pytest.raises(OSError):
                refused()
        assert mount.told() == []

    def test_a_name_that_cannot_be_known_is_told_as_unknown(self, mount: Mount, kernel: SmallKernel) -> None:
        """Two names, and the one by which the kernel reached it goes behind its back: nothing is kept silent."""
        handle = kernel.create("/f")
        volume = mount.filesystem.tree.routes[0].volume
        volume.link(volume.lookup(1, b"f").node, 1, b"unseen")
        mount.agent.delete("/f")
        mount.told()
        kernel.write(handle, b"1")
        assert mount.told() == ["unknown mount /"]


class TestAgents:
    def test_between_routes_a_move_is_a_coming_and_a_going(self, mount: Mount, agent: CompositeBackend) -> None:
        agent.upload_files([("/d/e/f", b"1"), ("/d/g", b"2")])
        mount.told()
        agent.move("/d", "/m/x/d")
        *came, went = mount.told()
        assert sorted(came) == [
            "created api /m/x/",
            "created api /m/x/d/",
            "created api /m/x/d/e/",
            "created api /m/x/d/e/f",
            "created api /m/x/d/g",
        ]
        assert went == "deleted api /d/"

    def test_what_a_route_covers_is_not_told(self) -> None:
        default = InMemoryBackend()
        mount = Mount(default, {"/m/n/": InMemoryBackend()})
        default.write("/m/n/covered", "")
        default.write("/m/seen", "")
        assert mount.told() == ["created api /m/seen"]
        default.move("/m/n/covered", "/shown")
        default.move("/shown", "/m/n/covered")
        default.move("/m", "/elsewhere")
        default.delete("/elsewhere")
        assert mount.told()[:3] == [
            "created api /shown",
            "deleted api /shown",
            "unknown api /m/",
        ]

    def test_one_volume_under_two_prefixes(self) -> None:
        both = InMemoryBackend()
        mount = Mount(InMemoryBackend(), {"/one/": both, "/two/": both})
        mount.agent.write("/one/f", "")
        mount.kernel.put("/two/g", b"")
        assert mount.told()[:4] == [
            "created api /one/f",
            "created api /two/f",
            "created mount /one/g",
            "created mount /two/g",
        ]

    def test_names_are_right_when_somebody_begins_to_watch(self) -> None:
        agent = CompositeBackend(InMemoryBackend())
        filesystem = FileSystem.of(agent)
        kernel = SmallKernel(filesystem)
        kernel.mkdir("/d")
        handle = kernel.create("/d/f")
        kernel.rename("/d", "/e")
        agent.move("/e/f", "/g")
        kernel.link("/g", "/h")
        kernel.unlink("/h")
        with filesystem.feed.watch() as watch:
            kernel.write(handle, b"1")
            assert [event.path for event in taken(watch)] == ["/g"]

    def test_a_shell_may_have_done_anything(self, tmp_path: Path) -> None:
        mount = Mount(InMemoryBackend(), {"/s/": LocalShellBackend(tmp_path)})
        mount.agent.routes["/s/"].execute("true")
        assert mount.told() == ["unknown api /s/"]

    def test_what_a_volume_hears_from_elsewhere(self, mount: Mount) -> None:
        volume: Any = mount.agent.routes["/m/"].volume
        volume.publish(Change(node=1))
        volume.publish(Change(node=7, kind="modified", path="/f", source="elsewhere"))
        assert mount.told() == ["unknown elsewhere /m/", "modified elsewhere /m/f"]

    def test_a_change_in_a_directory_that_has_come_anew_is_another_one(self, mount: Mount) -> None:
        """A host may tell of a directory that goes and comes with everything in it by its name alone."""
        volume: Any = mount.agent.routes["/m/"].volume
        for kind, path in (("modified", "/d/f"), ("deleted", "/d/"), ("created", "/d/"), ("modified", "/d/f")):
            volume.publish(Change(kind=kind, path=path, source="elsewhere"))
        assert [event.split()[0] for event in mount.told()] == ["modified", "deleted", "created", "modified"]

    def test_an_unconfined_directory_is_told_of_as_far_as_it_is_shown(self, tmp_path: Path) -> None:
        (tmp_path / "root").mkdir()
        backend = FilesystemBackend(tmp_path / "root", virtual_mode=False)
        mount = Mount(InMemoryBackend(), {"/r/": backend})
        backend.write(f"{tmp_path}/root/f", "x")
        backend.write(f"{tmp_path}/outside", "x")
        backend.move(f"{tmp_path}/root/f", f"{tmp_path}/root/g")
        backend.move(f"{tmp_path}/root/g", f"{tmp_path}/gone")
        backend.move(f"{tmp_path}/outside", f"{tmp_path}/root/d/come")
        backend.delete(f"{tmp_path}/root/d")
        assert mount.told() == [
            "created api /r/f",
            "moved api /r/g /r/f",
            "deleted api /r/g",
            "created api /r/d/",
            "created api /r/d/come",
            "deleted api /r/d/come",
            "deleted api /r/d/",
        ]


@pytest.mark.parametrize("make", [StateBackend, DuckBackend])
def test_what_a_composite_did_for_a_backend_that_tells_nothing(make: Any) -> None:
    backend = make(SimpleNamespace(state={"files": {}})) if make is StateBackend else make()
    mount = Mount(InMemoryBackend(), {"/s/": backend})
    agent = mount.agent
    agent.write("/s/d/f", "one\n")
    agent.edit("/s/d/f", "one", "two")
    assert mount.told() == ["created api /s/d/f", "modified api /s/d/f"]
    agent.upload_files([("/s/d/f", b"x"), ("/s/d/g", b"y")])
    assert mount.told() == ["modified api /s/d/f", "created api /s/d/g"]
    assert agent.move("/s/d/f", "/g").error is None
    assert mount.told() == ["created api /g", "deleted api /s/d/f"]
    assert agent.move("/g", "/s/h").error is None
    assert mount.told() == ["created api /s/h", "deleted api /g"]
    assert agent.delete("/s/d").error is None and agent.delete("/s/none").error
    assert mount.told() == ["deleted api /s/d/"]


class TestWatches:
    def test_only_what_is_below(self, mount: Mount) -> None:
        with mount.filesystem.feed.watch("/m/d/") as watch:
            for path in ("/m/d", "/m/d/e", "/m/other"):
                mount.kernel.mkdir(path)
            mount.kernel.put("/m/d2", b"")
            assert [event.path for event in taken(watch)] == ["/m/d/", "/m/d/e/"]
            mount.kernel.rename("/m/d/e", "/m/e")
            mount.kernel.rename("/m/other", "/m/d/other")
            mount.kernel.rename("/m/e", "/m/z")
            moved = [(event.path, event.moved_from) for event in taken(watch)]
            assert moved == [("/m/e/", "/m/d/e/"), ("/m/d/other/", "/m/other/")]
            mount.kernel.rename("/m/d", "/m/gone")
            mount.agent.delete("/m/z")
            assert [(event.kind, event.moved_from) for event in taken(watch)] == [("moved", "/m/d/")]

    def test_what_is_above_concerns_what_is_below(self, mount: Mount) -> None:
        with mount.filesystem.feed.watch("/m/d/e") as watch:
            mount.kernel.mkdir("/m/d")
            mount.kernel.setattr("/m/d", mode=0o700)
            assert taken(watch) == []
            mount.kernel.rename("/m/d", "/m/x")
            mount.kernel.rename("/m/x", "/m/d")
            mount.kernel.rmdir("/m/d")
            assert [event.kind for event in taken(watch)] == ["moved", "moved", "deleted"]

    def test_repeated_changes_are_told_once_until_taken(self, mount: Mount) -> None:
        one, two = mount.kernel.create("/one"), mount.kernel.create("/two")
        mount.told()
        for _ in range(3):
            mount.kernel.write(one, b"x")
            mount.kernel.write(two, b"x")
            mount.agent.upload_files([("/one", b"y")])
        assert mount.told() == [
            "modified mount /one",
            "modified mount /two",
            "modified api /one",
        ]
        mount.kernel.write(one, b"x")
        mount.kernel.rename("/one", "/three")
        mount.kernel.rename("/three", "/one")
        mount.kernel.write(one, b"x")
        assert [event.split()[0] for event in mount.told()] == ["modified", "moved", "moved", "modified"]

    def test_a_slow_watcher_is_told_that_it_has_missed_something(
        self, mount: Mount, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch_module, "QUEUE_EVENTS", 3)
        for number in range(10):
            mount.kernel.mkdir(f"/d{number}")
        assert [event.split()[0] for event in mount.told()] == ["created"] * 3 + ["overflow"]
        mount.kernel.mkdir("/after")
        assert mount.told() == ["created mount /after/"]

    def test_waiting_ends_with_an_event_the_time_or_the_watch(self, mount: Mount) -> None:
        start = time.monotonic()
        assert mount.watch.get(0.05) is None
        assert time.monotonic() - start >= 0.05
        seen: list[FileEvent] = []
        with beside(lambda: seen.extend(mount.watch), limit_s=10) as waiting:
            mount.kernel.mkdir("/d")
            mount.agent.write("/f", "x")
            eventually(lambda: len(seen) == 2)
            assert not waiting.done()
            mount.watch.close()
            mount.watch.close()
        assert mount.watch.closed
        mount.kernel.mkdir("/e")
        assert mount.watch.get(0) is None

    def test_a_watch_ends_with_the_mount(self, mount: Mount) -> None:
        mount.kernel.mkdir("/d")
        mount.filesystem.detach()
        assert [event.path for event in mount.watch] == ["/d/"]
        assert mount.watch.closed
        with pytest.raises(OSError, match="has ended"):
            mount.filesystem.feed.watch()

    @pytest.mark.parametrize("path", ["", "/..", "~"])
    def test_a_bad_path_is_refused(self, mount: Mount, path: str) -> None:
        with pytest.raises(PathError):
            mount.filesystem.feed.watch(path)

    def test_nobody_pays_while_nobody_watches(self, mount: Mount) -> None:
        routes = mount.filesystem.tree.routes
        assert all(route.door is not route.volume for route in routes)
        second = mount.filesystem.feed.watch("/m")
        mount.watch.close()
        assert all(route.door is not route.volume for route in routes)
        second.close()
        assert all(route.door is route.volume for route in routes)

    def test_an_event_of_an_agent_comes_when_the_kernel_has_been_told(self, mount: Mount) -> None:
        """It has its place from the moment of the change, and is not given out before both faces show it."""
        told_meanwhile: list[FileEvent | None] = []
        mount.kernel.mkdir("/d")
        mount.told()

        def invalidate_entry(parent: int, name: bytes) -> None:
            if name != feed_module.NO_NAME:
                mount.kernel.mkdir(f"/d/{len(told_meanwhile)}")
                told_meanwhile.append(mount.watch.get(0))

        mount.kernel.invalidate_entry = invalidate_entry  # type: ignore[method-assign]
        mount.agent.write("/f", "x")
        assert told_meanwhile == [None]
        assert mount.told() == ["created api /f", "created mount /d/0/"]

    def test_an_event_of_the_kernel_is_taken_when_it_has_noted_its_answer(self, mount: Mount) -> None:
        """A notice for the directory of the change waits in the kernel until the request there is over."""
        told: list[tuple[object, ...]] = []
        mount.kernel.invalidate_entry = lambda *place: told.append(place)  # type: ignore[method-assign]
        mount.kernel.invalidate_inode = lambda inode, **_: told.append((inode,))  # type: ignore[method-assign]
        mount.kernel.mkdir("/m/d")
        mount.kernel.put("/m/d/f", b"x")
        assert told == []
        assert mount.told() == [
            "created mount /m/d/",
            "created mount /m/d/f",
            "modified mount /m/d/f",
        ]
        inodes = [mount.kernel.inode(path) for path in ("/m", "/m/d", "/m/d/f")]
        assert told == [(inodes[0], feed_module.NO_NAME), (inodes[1], feed_module.NO_NAME), (inodes[2],)]

    def test_an_error_in_the_middle_leaves_no_gate_shut(self, mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:

        mount.agent.write("/f", "old")
        mount.told()
        monkeypatch.setattr(type(mount.filesystem.tree.routes[0].volume), "write", raising(OSError(5, "broken")))
        assert mount.agent.edit("/f", "old", "new").error
        assert mount.told() == ["modified api /f"]
