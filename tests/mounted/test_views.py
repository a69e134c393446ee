"""Views and rules of routes: at the kernel, for verbs, over the socket, and in commands."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import mounts
import pytest
from controlled import Raw
from eventually import eventually
from kinds import MEMORY
from mounts import Mounted, Serve
from profiles import amount
from programs import command as run

import fusebackend
from fusebackend.backends.sqlite.backend import SqliteVolume
from fusebackend.linux.bind_mount import unbind
from fusebackend.rules.view import View
from fusebackend.testing.posix.case import all_refused, opened, refused
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.walk import resolve

KINDS = [
    MEMORY,
    pytest.param("sqlite:{tmp}/volume.db", marks=pytest.mark.night),
    "dir:{tmp}/files",
    "store+sqlite:{tmp}/store.db?ns=a",
]
"""URLs of volumes, `{tmp}` is a directory. For a view, `memory:` and `sqlite:` are what `dir:` is:
a volume with all features."""

DENIED = re.compile("Permission denied|needs an approval")

QUESTIONS = amount("FUSEBACKEND_VIEW_QUESTIONS", day=250, night=12_500)
"""At each of four doors."""

RULES = [
    {"operations": ["read", "write"], "paths": ["/**/.env", "/team/private"], "mode": "hide"},
    {"operations": ["read", "write"], "paths": ["/secrets/**"], "mode": "deny"},
    {"operations": ["write"], "paths": ["/log/**"], "mode": "append"},
    {"operations": ["write"], "paths": ["/ro/**"], "mode": "deny"},
    {"operations": ["read"], "paths": ["/drop/**"], "mode": "deny"},
    {"operations": ["write"], "paths": ["/ask/**"], "mode": "interrupt"},
]
FILES = {
    "/a.txt": "a\n",
    "/secrets/key": "needle KEY\n",
    "/work/x.py": "needle x\n",
    "/work/.env": "needle ENV\n",
    "/only/.env": "needle ENV\n",
    "/log/l.txt": "one\n",
    "/ro/f": "needle ro\n",
    "/drop/in": "needle dropped\n",
    "/ask/a": "asked\n",
    "/team/t": "needle team\n",
    "/team/private/p": "needle private\n",
    "/team/.env": "needle team env\n",
}


def configured(tmp_path: Path, default: str, more: str = "", rules: object = RULES) -> Path:
    path = tmp_path / "mount.toml"
    lines = []
    for rule in rules:  # type: ignore[attr-defined]
        words = [f"{key} = {json.dumps(rule[key], ensure_ascii=False)}" for key in ("operations", "paths", "mode")]
        lines.append(f"{{ {', '.join(words)} }}")
    text = f"{more}\n[views.reviewer]\nrules = [{', '.join(lines)}]\n"
    path.write_text(text.replace("DEFAULT", default))
    return path


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp = tmp_path_factory.mktemp("views")
    (tmp / "files").mkdir()
    default = request.param.format(tmp=tmp)
    with mounts.mounted(tmp / "mnt", default, routes={"/team": "memory:"}, config=configured(tmp, "")) as server:
        yield server


@pytest.fixture
def viewed(shared: Mounted) -> Mounted:
    with fusebackend.connect(shared.path) as files:
        for directory in ("/", "/team"):
            for each in files.ls(directory).entries or ():
                if each["path"] != "/team/":
                    assert files.delete(each["path"]).error is None
        answers = files.upload_files([(path, text.encode()) for path, text in FILES.items()])
        assert [answer.error for answer in answers] == [None] * len(FILES)
    return shared


def own_socket(server: Mounted) -> str:
    with fusebackend.connect(server.path, view="") as files:
        return files.view_socket("reviewer")


def tree(server: Mounted) -> Path:
    return server.path / ".fusebackend/views/reviewer"


def everything(top: Path) -> set[str]:
    found = set()
    for path, directories, names in os.walk(top):
        found |= {os.path.join(path, name)[len(str(top)) :] for name in (*directories, *names)}
    return found


class TestTheKernel:
    def test_what_is_hidden_is_not_there_and_can_not_be_made(self, viewed: Mounted) -> None:
        view = tree(viewed)
        assert not [path for path in everything(view) if ".env" in path or "private" in path]
        refused(errno.ENOENT, lambda: os.stat(view / "work/.env"))
        refused(errno.ENOENT, lambda: os.stat(view / "team/private/p"))
        for name in (".env", "nowhere/.env", "work/.env"):
            (view / "nowhere").mkdir(exist_ok=True)
            all_refused(
                (errno.EACCES, (view / name).write_text, "x"),
                (errno.EACCES, (view / name).mkdir),
                (errno.EACCES, os.rename, view / "a.txt", view / name),
            )
        refused(errno.EACCES, lambda: os.rmdir(view / "only"))
        (view / "empty").mkdir()
        refused(errno.EACCES, lambda: os.rename(view / "empty", view / "only"))
        assert (viewed.path / "work/.env").read_text() == FILES["/work/.env"]
        assert os.stat(view).st_nlink == 1

    def test_what_is_denied_is_refused_and_lacks_the_bits(self, viewed: Mounted) -> None:
        view = tree(viewed)
        all_refused(
            (errno.EACCES, (view / "secrets/key").read_bytes),
            (errno.EACCES, (view / "secrets/key").write_bytes, b""),
            (errno.EACCES, (view / "secrets/new").write_bytes, b""),
            (errno.EACCES, (view / "ask/a").write_bytes, b""),
            (errno.EACCES, os.unlink, view / "ro/f"),
            (errno.EACCES, os.truncate, view / "ro/f", 0),
            (errno.EACCES, os.chmod, view / "ro/f", 0o777),
            (errno.EACCES, os.utime, view / "ro/f"),
            (errno.EACCES, os.rename, view / "ro/f", view / "f"),
            (errno.EACCES, os.rename, view / "secrets/key", view / "f"),
        )
        assert (view / "ro/f").read_text() == FILES["/ro/f"]
        assert os.stat(view / "ro/f").st_mode & 0o222 == 0
        assert os.stat(view / "secrets/key").st_mode & 0o666 == 0
        assert os.stat(view / "drop/in").st_mode & 0o444 == 0
        (view / "drop/new").write_text("mine")
        refused(errno.EACCES, lambda: (view / "drop/new").read_text())
        refused(errno.EACCES, lambda: os.open(view / "drop/new", os.O_RDWR))
        assert (viewed.path / "drop/new").read_text() == "mine"

    def test_append_is_at_the_end_alone(self, viewed: Mounted) -> None:
        path = tree(viewed) / "log/l.txt"
        with path.open("a") as file:
            file.write("two\n")
        all_refused(
            (errno.EACCES, path.write_text, "gone"),
            (errno.EACCES, os.truncate, path, 1),
            (errno.EACCES, os.unlink, path),
        )
        with opened(path, os.O_WRONLY) as descriptor:
            all_refused(
                (errno.EACCES, os.pwrite, descriptor, b"X", 0),
                (errno.EACCES, os.pwrite, descriptor, b"X", 100),
                (errno.EACCES, os.ftruncate, descriptor, 0),
            )
        (tree(viewed) / "log/new").write_text("new\n")
        assert (viewed.path / "log/l.txt").read_text() == path.read_text() == "one\ntwo\n"
        assert (viewed.path / "log/new").read_text() == "new\n"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give capabilities")
    @pytest.mark.parametrize("name", ["drop/in", "log/l.txt"])
    def test_a_write_takes_privileges_away(self, name: str, viewed: Mounted) -> None:
        """Who may append to a program would have other bytes run with its privileges."""
        file = viewed.path / name
        with contextlib.suppress(OSError):  # `store:` has neither
            os.setxattr(file, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
        file.chmod(0o4755)
        with opened(tree(viewed) / name, os.O_WRONLY | os.O_APPEND) as fd:
            assert os.write(fd, b"more\n") == 5
        with pytest.raises(OSError, match=r"No data|not supported"):
            os.getxattr(file, "security.capability")
        eventually(lambda: stat.S_IMODE(file.stat().st_mode) == 0o755, 10)
        assert file.read_text() == FILES["/" + name] + "more\n"

    def test_links_and_descriptors_lead_nowhere_else(self, viewed: Mounted) -> None:
        view = tree(viewed)
        refused(errno.EACCES, lambda: os.link(view / "secrets/key", view / "linked"))
        for source, target in (
            ("sl", "secrets/key"),
            ("work/sl", "../secrets/key"),
            ("el", "work/.env"),
            ("dl", "secrets"),
        ):
            try:
                os.symlink(target, view / source)
            except OSError as error:
                assert error.errno == errno.EPERM
                return
        all_refused(
            (errno.EACCES, (view / "sl").read_text),
            (errno.EACCES, (view / "work/sl").read_text),
            (errno.ENOENT, (view / "el").read_text),
            (errno.EACCES, (view / "dl/key").read_text),
            (errno.EACCES, (view / "el").write_text, "x"),
        )
        with (view / "ro/f").open() as file:
            refused(errno.EACCES, lambda: os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR))
        with opened(view / "secrets", os.O_RDONLY) as place:
            refused(errno.EACCES, lambda: os.open("key", os.O_RDONLY, dir_fd=place))
            refused(errno.EACCES, lambda: os.open("../secrets//./key", os.O_RDONLY, dir_fd=place))

    def test_a_directory_is_not_carried_out_of_its_rules(self, viewed: Mounted) -> None:
        view = tree(viewed)
        refused(errno.EXDEV, lambda: os.rename(view / "secrets", view / "public"))
        refused(errno.EXDEV, lambda: os.rename(view / "ro", view / "rw"))
        (view / "other").mkdir()
        refused(errno.EXDEV, lambda: os.rename(view / "other", view / "secrets"))
        os.rename(view / "only", view / "moved")  # what is hidden in it is hidden there
        assert list((view / "moved").iterdir()) == []
        assert (viewed.path / "moved/.env").read_text() == FILES["/only/.env"]


class TestAttacks:
    """Ways out of a view that were open once, and others that look as if they were."""

    def test_a_views_root_tells_nothing_of_the_mount(self, viewed: Mounted) -> None:
        assert b"memory" in os.getxattr(viewed.path, "user.fusebackend.status")
        refused(errno.ENODATA, lambda: os.getxattr(tree(viewed), "user.fusebackend.status"))
        script = 'python3 -c \'import os; print(os.getxattr("/", "user.fusebackend.status"))\''
        answer = command(viewed, "exec", "--view", "reviewer", "--", script)
        assert "No data available" in answer.stderr
        assert answer.stdout == ""

    def test_a_rule_is_not_passed_by_a_newline(self, viewed: Mounted) -> None:
        view = tree(viewed)
        for name in (".\n", "..\n", "x\n"):
            try:
                (viewed.path / name).touch()
            except OSError:
                continue  # the volume has no such names
            refused(errno.EACCES, lambda name=name: (view / "ro" / name).touch())
            refused(errno.EACCES, lambda name=name: (view / "secrets" / name).touch())
            (viewed.path / "secrets" / name).touch()
            refused(errno.EACCES, lambda name=name: (view / "secrets" / name).read_bytes())

    def test_opening_to_cut_is_writing(self, viewed: Mounted) -> None:
        view = tree(viewed)
        for name in ("ro/f", "log/l.txt"):
            refused(errno.EACCES, lambda name=name: os.open(view / name, os.O_RDONLY | os.O_TRUNC))
            assert (viewed.path / name).read_text() == FILES["/" + name]

    def test_a_cut_of_a_file_that_others_have_made_meanwhile(self, viewed: Mounted) -> None:
        path = tree(viewed) / "log/late"
        assert not path.exists()
        (viewed.path / "log/late").write_text("kept")
        refused(errno.EACCES, lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        assert (viewed.path / "log/late").read_text() == "kept"

    @pytest.mark.parametrize("face", ["kernel", "verbs"])
    def test_a_process_deep_in_a_directory_that_is_moved_gets_nothing_new(self, face: str, viewed: Mounted) -> None:
        view = tree(viewed)
        with fusebackend.connect(viewed.path) as files:
            files.upload_files([("/work/one/two/f", b"f"), ("/work/one/two/later", b"later")])
            place = os.open(view / "work/one/two", os.O_RDONLY)
            assert sorted(os.listdir(place)) == ["f", "later"]
            assert os.stat("f", dir_fd=place).st_size == 1
            if face == "verbs":
                assert files.move("/work", "/secrets/work").error is None
            else:
                os.rename(viewed.path / "work", viewed.path / "secrets/work")
        for name in ("f", "later"):
            with pytest.raises(OSError):
                os.open(name, os.O_RDONLY, dir_fd=place)
        with pytest.raises(OSError):
            os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=place)
        os.close(place)

    def test_a_link_that_others_make_is_not_counted(self, viewed: Mounted) -> None:
        view = tree(viewed)
        assert os.stat(view / "a.txt").st_nlink == 1
        try:
            os.link(viewed.path / "a.txt", viewed.path / "secrets/linked")
        except OSError as error:
            assert error.errno == errno.EPERM
            return
        assert os.stat(viewed.path / "a.txt").st_nlink == 2
        assert os.stat(view / "a.txt").st_nlink == 1

    def test_a_change_of_a_file_with_a_number_of_its_own_is_seen_in_the_main_tree(self, viewed: Mounted) -> None:
        """As by `tail -f`: the file is open there, and the kernel has its pages and attributes."""
        view = tree(viewed)
        with open(viewed.path / "log/l.txt", "rb", 0) as log, open(viewed.path / "drop/in", "rb", 0) as dropped:
            assert (log.read(), dropped.read()) == (b"one\n", b"needle dropped\n")
            with open(view / "log/l.txt", "ab", 0) as writer:
                writer.write(b"two\n")
                assert log.read() == b"two\n"
            with open(view / "drop/in", "wb", 0) as writer:
                assert os.fstat(dropped.fileno()).st_size == 0
                writer.write(b"NEEDLE")
                assert os.pread(dropped.fileno(), 100, 0) == b"NEEDLE"
            os.truncate(view / "drop/in", 3)
            assert os.pread(dropped.fileno(), 100, 0) == b"NEE"
            os.utime(view / "drop/in", (1, 1))
            assert os.fstat(dropped.fileno()).st_mtime == 1

    def test_a_link_count_is_right_in_the_main_tree(self, viewed: Mounted) -> None:
        view = tree(viewed)
        with open(viewed.path / "a.txt", "rb", 0) as file, open(viewed.path / "counted", "wb") as other:

            def counts() -> tuple[int, int]:
                return os.fstat(file.fileno()).st_nlink, os.fstat(other.fileno()).st_nlink

            try:
                for old, new in (("a.txt", "counted2"), ("counted2", "counted3"), ("counted", "counted4")):
                    os.link(view / old, view / new)
            except OSError as error:
                assert error.errno == errno.EPERM
                return
            assert counts() == (3, 2)
            os.unlink(view / "counted3")
            os.rename(view / "counted2", view / "counted4")
            assert counts() == (2, 1)
            os.chmod(view / "counted4", 0o600)
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600

    def test_races_of_renames_never_lead_to_what_is_denied(self, viewed: Mounted) -> None:
        view = tree(viewed)
        swap = (
            "import os, sys\n"
            "top = sys.argv[1]\n"
            "while os.path.exists(top + '/go'):\n"
            "    os.rename(top + '/work', top + '/swap')\n"
            "    os.rename(top + '/secrets', top + '/work')\n"
            "    os.rename(top + '/swap', top + '/secrets')\n"
            "    os.rename(top + '/work', top + '/swap')\n"
            "    os.rename(top + '/secrets', top + '/work')\n"
            "    os.rename(top + '/swap', top + '/secrets')\n"
        )
        # What lies in /work is named x.py only, and so is what is denied: bytes of it must not come by that name.
        (viewed.path / "go").touch()
        with subprocess.Popen([sys.executable, "-c", swap, str(viewed.path)]) as other:
            for _ in range(200):
                for name in ("work/../secrets/x.py", "secrets/x.py", "secrets/key"):
                    try:
                        found = (view / name).read_bytes()
                    except OSError:
                        continue
                    raise AssertionError(f"{name}: {found!r}")
            (viewed.path / "go").unlink()
            assert other.wait(20) == 0

    def test_the_servers_name_is_not_the_volumes_in_a_view_either(self, viewed: Mounted) -> None:
        refused(errno.EPERM, lambda: (tree(viewed) / ".fusebackend").mkdir())
        with fusebackend.connect(viewed.path, view="reviewer") as files:
            for path in ("/.fusebackend/x", "/.fusebackend"):
                assert files.write(path, "x").error is not None
                assert files.upload_files([(path, b"x")])[0].error is not None
                assert files.move("/a.txt", path).error is not None
            assert files.ls("/.fusebackend").error is not None
            assert ".fusebackend" not in repr(files.ls("/").entries)
        with fusebackend.connect(viewed.path) as files:
            assert files.write("/.fusebackend/views/reviewer/.fusebackend/x", "x").error is not None
            assert files.write("//.fusebackend/./views/reviewer//.fusebackend/x", "x").error is not None

    def test_a_client_of_a_view_watches_nothing_of_the_servers(self, viewed: Mounted) -> None:
        with fusebackend.connect(viewed.path) as main, fusebackend.connect(viewed.path, view="reviewer") as files:
            assert main.create_branch("b").error is None
            try:
                with files.watch("/") as watch, files.watch("/.fusebackend") as own:
                    (viewed.path / ".fusebackend/branches/b/secrets/key").write_text("x")
                    (viewed.path / "end").touch()
                    events = []
                    while not events or events[-1].path != "/end":
                        event = watch.get(20)
                        assert event is not None
                        events.append(event)
                    assert {event.path for event in events} == {"/end"}
                    assert own.get(0.1) is None
            finally:
                main.delete_branches("b")


@contextlib.contextmanager
def at_its_own_point(tmp: Path) -> Iterator[tuple[Mounted, Path]]:
    """Serve a mount in a closed directory, with a mount point of the view."""
    closed = tmp / "closed"
    closed.mkdir(mode=0o700)
    for above in (tmp, *tmp.parents):
        if os.stat(above).st_mode & 0o001 == 0:
            above.chmod(0o755)
    place = tmp / "reviewer"
    place.mkdir()
    config = configured(tmp, "", "allow_other = true")
    config.write_text(config.read_text() + f"mount = '{place.name}'\n")  # relative paths begin at the file
    server = mounts.start(closed / "mnt", "memory:", config=config)
    eventually(lambda: mounts.is_listed(place), 60)
    try:
        with fusebackend.connect(server.path) as files:
            files.upload_files([(path, text.encode()) for path, text in FILES.items()])
        yield server, place
    finally:
        server.kill()
        while mounts.is_listed(place):
            unbind(str(place))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mounted, Path]]:
    with at_its_own_point(tmp_path_factory.mktemp("own")) as (server, place):
        yield server, place
        server.stop()
        assert not mounts.is_listed(place), "it ends with the mount"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make bind mounts, and be another user")
class TestItsOwnMountPoint:
    """A user who can't come to the mount, for the directory above it is closed, has the view's mount point alone."""

    def test_another_user_has_the_view_and_no_way_out(self, served: tuple[Mounted, Path]) -> None:
        server, place = served
        script = f"""
            cd {place}; cat a.txt secrets/key; ls -A work; ls -A ../closed {server.path}; ls ..
            cat ../closed/mnt/secrets/key; cd work
            cat ../../closed/mnt/a.txt; ls /proc/self/cwd/../.fusebackend; ls -A ../.fusebackend
            getfattr --only-values -n user.fusebackend.socket {place} | xargs ls; find {place} -name .env
            getfattr -n user.fusebackend.status {place}; echo made > {place}/work/made
        """
        env = {"PATH": "/usr/bin:/bin"}
        answer = subprocess.run(
            ["sh", "-c", script], user=65534, group=65534, extra_groups=[], env=env, capture_output=True, text=True
        )
        lines = answer.stdout.splitlines()
        assert lines[:2] == ["a", "x.py"], answer
        assert "reviewer" in lines[2:]
        assert not {"KEY", "ENV", ".env", "secrets", "status.json"} & {word for line in lines for word in line.split()}
        assert str(answer.stderr).count("ermission denied") >= 6, answer.stderr
        with fusebackend.connect(server.path) as files:
            assert [each["path"] for each in files.ls("/work").entries] == ["/work/.env", "/work/x.py"]

    def test_it_is_the_same_live_files_and_no_mount_of_its_own(self, served: tuple[Mounted, Path]) -> None:
        server, place = served
        assert os.stat(place / "a.txt").st_ino == os.stat(server.path / "a.txt").st_ino
        (place / "new").write_text("new")
        assert (server.path / "new").read_text() == "new"
        refused(errno.EACCES, lambda: (place / "secrets/key").read_text())
        refused(errno.ENOENT, lambda: (place / "work/.env").read_text())
        assert str(place) not in run("status").stdout

    def test_a_directory_that_is_moved_away_leads_nowhere(self, served: tuple[Mounted, Path]) -> None:
        server, place = served
        (server.path / "work/deep").mkdir()
        fd = os.open(place / "work/deep", os.O_RDONLY | os.O_DIRECTORY)
        os.rename(server.path / "work/deep", server.path / "secrets/deep")
        try:
            found = set()
            way = ".."
            for _ in range(6):
                try:
                    found |= set(os.listdir(os.open(way, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)))
                except OSError as error:
                    assert error.errno in (errno.ENOENT, errno.ESTALE, errno.EACCES), error
                way += "/.."
        finally:
            os.close(fd)
        assert not found & {".env", "key", ".fusebackend"}

    def test_a_dead_one_is_cleared_away(self, tmp_path: Path) -> None:
        with at_its_own_point(tmp_path) as (server, place):
            server.kill()
            assert mounts.is_listed(place)
            (tmp_path / "second").mkdir()
            done = run("mount", tmp_path / "second", "--default", "memory:", "--config", tmp_path / "mount.toml")
            try:
                assert done.returncode == 0, done
                assert f"  view reviewer: {place}" in done.stdout
                assert os.listdir(place) == ["team"] or os.listdir(place) == []
            finally:
                assert run("umount", tmp_path / "second").returncode == 0
            assert not mounts.is_listed(place)

    @pytest.mark.parametrize(
        ("place", "says"),
        [
            ("closed/mnt/x", "'closed/mnt/x' does not exist"),
            ("none", "mount point 'none' does not exist; make the directory first"),
            ("full", "mount point 'full' is not empty"),
            (".", "must not hold one another|not empty"),
        ],
    )
    def test_a_place_that_can_not_be_is_a_line(self, place: str, says: str, tmp_path: Path) -> None:
        for name in ("full/file", "mnt"):
            (tmp_path / name).mkdir(parents=True)
        config = configured(tmp_path, "")
        config.write_text(config.read_text() + f"mount = '{place}'\n")
        wrong = run("mount", tmp_path / "mnt", "--default", "memory:", "--config", config)
        assert wrong.returncode == 1
        assert re.search(says, wrong.stderr.replace(f"{tmp_path}/", "")), wrong.stderr
        assert wrong.stderr.count("\n") == 1
        assert not mounts.is_listed(tmp_path / "mnt")


class TestVerbs:
    @pytest.fixture(params=["path", "socket", "own socket"])
    def door(self, request: pytest.FixtureRequest, viewed: Mounted) -> object:
        """The verbs by the path of the view's tree, of a client of the view, and of one at the view's own socket."""
        name = None if request.param == "own socket" else "reviewer" if request.param == "socket" else ""
        place = own_socket(viewed) if name is None else str(viewed.path)
        with fusebackend.connect(place, view=name) as files:
            yield files, "/.fusebackend/views/reviewer" if name == "" else ""

    def test_all_of_them(self, door: tuple[fusebackend.Client, str], viewed: Mounted) -> None:
        files, top = door
        answers: list[object] = [files.ls(top or "/"), files.ls(top + "/work"), files.ls(top + "/only")]
        answers += [files.glob("**", top or "/"), files.grep("needle", top or "/"), files.glob("**/.env", top or "/")]
        assert ".env" not in repr(answers)
        assert "private" not in repr(answers)
        assert "secrets/key" not in repr(answers)
        assert {each["path"][len(top) :] for each in files.grep("needle", top or "/").matches} == {
            "/work/x.py", "/ro/f", "/team/t"
        }  # fmt: skip
        for path in ("/secrets/key", "//secrets/./key", "/work/../secrets/key"):
            assert "Permission denied" in str(files.read(top + path).error)
        absent, hidden = files.read(top + "/work/none"), files.read(top + "/work/.env")
        assert str(absent.error).replace("none", ".env") == str(hidden.error)
        assert files.stat(top + "/work/.env").code == "file_not_found"
        assert files.stat(top + "/team/private").code == "file_not_found"
        secret = files.stat(top + "/secrets/key")
        assert (secret.mode & 0o666, secret.version) == (0, None)
        for path in ("/work/.env", "/.env", "/secrets/new", "/ro/new", "/team/private/x", "/team/private"):
            assert "Permission denied" in str(files.write(top + path, "x").error), path
            assert files.upload_files([(top + path, b"x")])[0].error == "permission_denied", path
        assert "Permission denied" in str(files.delete(top + "/only").error)
        assert "Permission denied" in str(files.delete(top + "/ro/f").error)
        assert files.move(top + "/secrets/key", top + "/k").error is not None
        assert files.move(top + "/secrets", top + "/k").error is not None
        assert files.move(top + "/a.txt", top + "/only/.env").error is not None
        assert "Permission denied" in str(files.edit(top + "/log/l.txt", "one", "two").error)
        assert files.edit(top + "/log/l.txt", "one\n", "one\ntwo\n").error is None
        assert files.download_files([top + "/secrets/key"])[0].error == "permission_denied"
        assert files.write(top + "/made", "x").error is None
        assert (viewed.path / "made").read_text() == "x"
        assert (viewed.path / "only/.env").read_text() == FILES["/only/.env"]
        assert (viewed.path / "ro/f").read_text() == FILES["/ro/f"]

    @pytest.mark.parametrize("own", [False, True])
    def test_a_client_of_a_view_has_nothing_else(self, own: bool, viewed: Mounted) -> None:
        place, name = (own_socket(viewed), None) if own else (str(viewed.path), "reviewer")
        with fusebackend.connect(place, view=name) as files:
            for ask in (files.log, files.snapshots, files.branches, files.df, files.prune, lambda: files.diff("c1"),
                        files.undo, files.metrics, lambda: files.create_branch("b"), lambda: files.begin_call("t"),
                        lambda: files.create_snapshot("s"), lambda: files.view_socket("reviewer"),
                        lambda: files.forget("/a.txt"), lambda: files.invalidate("/")):  # fmt: skip
                refused(errno.EPERM, ask)
            assert files.read("/.fusebackend/views/reviewer/a.txt").error is not None
            assert files.read("/.fusebackend/status.json").error is not None
            assert files.stat("/.fusebackend/views/reviewer/a.txt").error is not None
            assert [each.name for each in files.views()] == ["reviewer"]
            assert "memory" not in repr(files.status())
        with pytest.raises(fusebackend.MountError, match="no view 'none'; there are: reviewer"):
            fusebackend.connect(viewed.path, view="none")

    def test_nothing_leads_out_of_the_socket_of_a_view(self, tmp_path: Path, serve: Serve) -> None:
        more = 'default_view = "open"\n[views.open]\nrules = []'
        server = serve("memory:", config=configured(tmp_path, "", more))
        (server.path / "secrets").mkdir()
        (server.path / "secrets/key").write_text("KEY")
        with fusebackend.connect(server.path, view="") as files:
            address = files.view_socket("reviewer")
            assert files.view_socket("reviewer") == address != files.view_socket("open")
            refused(errno.ENOENT, lambda: files.view_socket("none"))
        assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
        for name in ("", "open", "none"):
            with pytest.raises(fusebackend.MountError, match=r"through (a )?view.*for good"):
                fusebackend.connect(address, view=name)
        with Raw(address) as plain:
            answers = []
            for params in ({"view": ""}, {"view": "open"}, {"view": "reviewer"}, {"actor": {}}, {}):
                answers += [plain.ask("hello", **params), plain.ask("read", file_path="/secrets/key")]
        assert [answer["error"]["data"]["errno"] for answer in answers[:4:2]] == [errno.EPERM, errno.EPERM]
        assert all("Permission denied" in answer["result"]["error"] for answer in answers[1::2])
        with fusebackend.connect(address) as files:
            assert "denied" in files.execute("cat /secrets/key").output
            assert files.mountpoint == address
        server.stop()
        assert not os.path.exists(address)
        with pytest.raises(fusebackend.MountError, match="lies in no mount"):
            fusebackend.connect(address)

    def test_a_watch_has_what_may_be_read(self, viewed: Mounted) -> None:
        with fusebackend.connect(viewed.path, view="reviewer") as files, files.watch("/") as watch:
            for name in ("work/.env", "secrets/new", "team/private/p", "work/seen"):
                (viewed.path / name).write_text("x")
            os.rename(viewed.path / "work/seen", viewed.path / "secrets/seen")
            paths = []
            while not paths or paths[-1] != ("deleted", "/work/seen"):
                event = watch.get(20)
                assert event is not None
                paths.append((event.kind, event.path))
                assert event.moved_from is None
            assert {path for _, path in paths} == {"/work/seen"}


class TestCommands:
    def test_a_view_is_the_root_of_a_command(self, viewed: Mounted) -> None:
        script = (
            "cat /secrets/key /work/.env; cat /proc/self/cwd/../secrets/key; ls -A /work; cat /a.txt; echo x > /ro/f; "
            "echo more >> /log/l.txt; echo mine > /made; ls /.fusebackend; find / -xdev -name .env; "
            "cat /proc/*/root/secrets/key; find /proc/self/fd/ -lname '*secrets*'"
        )
        answer = command(viewed, "exec", "--view", "reviewer", "--", script)
        assert "KEY" not in answer.stdout + answer.stderr
        assert "ENV" not in answer.stdout
        assert answer.stdout.splitlines() == ["x.py", "a"]
        assert (viewed.path / "log/l.txt").read_text() == "one\nmore\n"
        assert (viewed.path / "made").read_text() == "mine\n"
        assert (viewed.path / "ro/f").read_text() == FILES["/ro/f"]
        with fusebackend.connect(viewed.path, view="reviewer") as files:
            said = files.execute("cat /secrets/key; ls /work").output
            assert "KEY" not in said
            assert "x.py" in said

    def test_the_default_view_binds_commands_and_clients_that_name_none(self, tmp_path: Path, serve: Serve) -> None:
        more = 'default_view = "reviewer"\n[execute]\ntrees = ["snapshots"]'
        server = serve(f"sqlite:{tmp_path}/v.db", config=configured(tmp_path, "", more))
        with fusebackend.connect(server.path, view="") as files:
            files.write("/secrets/key", "KEY")
            assert files.read("/secrets/key").error is None
            assert "denied" in files.execute("cat /secrets/key").output
            assert files.create_branch("b").error is None
            files.create_snapshot("s")
            for cwd in ("/.fusebackend/branches/b", "/.fusebackend/snapshots"):
                said = files.run("cat /secrets/key", cwd=cwd).output
                assert "KEY" not in said
                assert "default_view" in said
        with fusebackend.connect(server.path) as files:
            assert "denied" in str(files.read("/secrets/key").error)
            assert "denied" in files.execute("cat /secrets/key").output
        assert "denied" in command(server, "exec", "--", "cat /secrets/key").stderr
        assert (server.path / "secrets/key").read_text() == "KEY"

    @pytest.mark.parametrize(
        ("default", "more"), [("python:guests:marked", ""), ("memory:", '[execute]\nsandbox = "none"')]
    )
    def test_what_a_view_can_not_bind_is_not_run(self, default: str, more: str, tmp_path: Path, serve: Serve) -> None:
        server = serve(default, config=configured(tmp_path, "", more))
        answer = command(server, "exec", "--view", "reviewer", "--", "touch /ran")
        assert answer.returncode == 126
        assert answer.stderr.count("\n") == 1
        assert "view" in answer.stderr
        assert not (server.path / "ran").exists()
        config = configured(tmp_path, "", f'default_view = "reviewer"\n{more}')
        if not more:
            (tmp_path / "mnt").mkdir()
            refusal = run("mount", tmp_path / "mnt", "--config", config, "--default", default)
            assert refusal.returncode == 1
            assert "default_view = 'reviewer' can't bind commands" in refusal.stderr


def test_four_doors_decide_alike(tmp_path: Path, serve: Serve) -> None:
    chance = random.Random(18)
    names = ["a", "b", ".env", "x.py"]
    paths = [f"/{one}/{two}/f{three}" for one in names for two in names for three in (".env", "1", "2.py")]
    globs = ["/a/**", "/b/*/f1", "/**/.env", "/**/*.py", "/.env/b/**", "/x.py/{a,b}", "/*/a/f1", "/b/.env/**"]
    rules = [
        {
            "operations": ["read", "write"] if mode == "hide" else chance.choice([["write"], ["read", "write"]]),
            "paths": chance.sample(globs, 2),
            "mode": mode,
        }
        for mode in ("append", "deny", "hide", "allow", "deny", "interrupt", "append")
    ]
    view = View("reviewer", rules)
    server = serve("memory:", routes={"/b/a": "memory:"}, config=configured(tmp_path, "", rules=rules))
    names_of = {"EACCES": "denied", "ENOENT": "absent"}
    with fusebackend.connect(server.path, view="") as main:
        main.upload_files([(path, b"text\n") for path in paths])
    asked = [(chance.choice(["read", "write"]), chance.choice(paths)) for _ in range(QUESTIONS)]

    def expected(operation: str, path: str) -> str:
        mode = view.decide(operation, path)  # type: ignore[arg-type]
        if mode == "hide":
            return "absent"
        return {"deny": "denied", "interrupt": "denied"}.get(mode, mode)

    def tried(work: object) -> str:
        try:
            work()  # type: ignore[operator]
        except OSError as error:
            return names_of[errno.errorcode[error.errno]]
        return "allow"

    def said(error: str | None) -> str:
        return "allow" if error is None else "denied" if DENIED.search(error) else "absent"

    wanted = [expected(*each) for each in asked]
    assert set(wanted) == {"allow", "append", "denied", "absent"}
    top = tree(server)

    def at_kernel(operation: str, path: str) -> str:
        file = str(top) + path
        if operation == "read":
            return tried(lambda: open(file, "rb").close())
        first = tried(lambda: os.close(os.open(file, os.O_WRONLY)))
        if first != "allow":
            return first
        with opened(file, os.O_WRONLY) as descriptor:
            return "append" if tried(lambda: os.pwrite(descriptor, b"text", 0)) == "denied" else "allow"

    def by_verbs(files: fusebackend.Client, prefix: str, operation: str, path: str) -> str:
        if operation == "read":
            return said(files.read(prefix + path).error)
        at_start = said(files.edit(prefix + path, "text", "Text").error)
        if at_start == "allow":
            files.edit(prefix + path, "Text", "text")
            return "allow"
        if at_start == "absent":
            return at_start
        # What may not be read can't be edited: uploads tell the rest.
        put = said(files.upload_files([(prefix + path, b"text\n")])[0].error and "Permission denied")
        if put == "allow":
            return "allow"
        content = files.read(prefix + path)
        text = "" if content.file_data is None else content.file_data["content"]
        if text and said(files.edit(prefix + path, text, text + "+").error) == "allow":
            return "append"
        return "denied"

    assert [at_kernel(*each) for each in asked] == wanted
    # No verb appends to what it may not read.
    by_words = [
        "denied" if mode == "append" and expected("read", path) == "denied" else mode
        for mode, (_, path) in zip(wanted, asked, strict=True)
    ]
    with fusebackend.connect(server.path, view="") as main:
        assert [by_verbs(main, "/.fusebackend/views/reviewer", *each) for each in asked] == by_words
    with fusebackend.connect(server.path, view="reviewer") as files:
        assert [by_verbs(files, "", *each) for each in asked] == by_words
        answer = files.run(COMMAND, stdin=json.dumps(asked).encode(), timeout=500)
    assert [LETTERS[letter] for letter in answer.output.strip()] == wanted


LETTERS = {"y": "allow", "+": "append", "d": "denied", "-": "absent"}
"""Of the answers of `COMMAND`: the output of a command is cut at 100,000 characters."""

COMMAND = r"""python3 -c '
import errno, json, os, sys
def ask(operation, path):
    try:
        if operation == "read":
            open(path, "rb").close()
            return "y"
        file = os.open(path, os.O_WRONLY)
    except OSError as error:
        return {errno.EACCES: "d", errno.ENOENT: "-"}[error.errno]
    try:
        os.pwrite(file, b"text", 0)
        return "y"
    except PermissionError:
        return "+"
    finally:
        os.close(file)
print("".join(ask(*each) for each in json.load(sys.stdin)))
'"""


class TestRoutes:
    def test_a_hidden_name_is_not_there_for_anybody_and_a_read_only_one_stays(self, ruled: Mounted) -> None:
        root = ruled.path
        assert everything(root) == SEEN | {"/ro", "/ro/r"}
        assert os.stat(root / "sub/x").st_nlink == 1
        all_refused(
            (errno.ENOENT, (root / "sub/.env").read_text),
            (errno.EACCES, (root / "sub/.env").write_text, "x"),
            (errno.EACCES, (root / "secret").mkdir),
            (errno.EACCES, os.rename, root / "sub/x", root / ".env"),
        )
        (root / "sub/x").unlink()
        refused(errno.EACCES, lambda: (root / "sub").rmdir())
        with fusebackend.connect(root) as files:
            assert files.grep(SECRET).matches == [] == files.glob("**/.env").matches
            assert "Permission denied" in str(files.write("/.env", "x").error)
            assert "Permission denied" in str(files.delete("/sub").error)
            assert str(files.read("/secret/key").error) == "File '/secret/key' not found"
            assert SECRET not in files.execute("cat /.env /sub/.env /secret/key").output
        all_refused(
            (errno.EROFS, (root / "ro/new").write_text, "x"),
            (errno.EROFS, (root / "ro/r").write_text, "x"),
            (errno.EROFS, (root / "ro/r").unlink),
        )
        with fusebackend.connect(root) as files:
            assert "Read-only" in str(files.write("/ro/new", "x").error)
            assert "Read-only" in str(files.edit("/ro/r", "r", "b").error)
            assert files.upload_files([("/ro/r", b"x")])[0].error == "permission_denied"
        assert (root / "ro/r").read_text() == "r\n"
        assert everything(root / "ro") == {"/r"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    tmp = tmp_path_factory.mktemp("commands")
    with mounts.mounted(tmp / "mnt", "memory:", config=configured(tmp, "")) as server:
        yield server


class TestTheCommandLine:
    def test_list_show_and_explain(self, server: Mounted) -> None:
        assert command(server, "view", "list").stdout == f"reviewer  6 rules    {tree(server)}\n"
        shown = command(server, "view", "show", "reviewer").stdout.splitlines()
        assert shown[0] == "  1  hide       read,write  /**/.env /team/private"
        assert json.loads(command(server, "view", "show", "reviewer", "--json").stdout)["rules"] == RULES
        explained = command(server, "view", "explain", "reviewer", "write", "/team/private/x").stdout
        assert explained.startswith("hide: rule 1 matches /team/private\n")
        assert command(server, "view", "explain", "reviewer", "read", "/b").stdout == "allow: no rule matches\n"
        wrong = command(server, "view", "show", "none")
        assert (wrong.returncode, wrong.stderr) == (1, "Error: there is no view 'none'; there are: reviewer\n")
        wrong = command(server, "view", "explain", "reviewer", "read", "~")
        assert wrong.returncode == 1
        assert wrong.stderr.count("\n") == 1

    def test_the_socket_of_a_view_takes_the_place_of_a_mount(self, server: Mounted) -> None:
        (server.path / "work").mkdir()
        (server.path / "work/.env").write_text("ENV")
        (server.path / "work/x").write_text("x")
        address = command(server, "view", "socket", "reviewer").stdout.rstrip("\n")
        assert command(address, "ls", "-A", "/work").stdout == "x\n"
        assert command(address, "exec", "--", "ls -A /work").stdout == "x\n"
        for words, says in (
            (["log"], "a view has no 'log': it is about what all readers have"),
            (["view", "socket", "reviewer"], "a view has no 'view_socket': it is about what all readers have"),
            (["shell", "true"], f"'{address}' is no mount point: give --mount the directory of the mount"),
        ):
            wrong = command(address, *words)
            assert (wrong.returncode, wrong.stderr) == (1, f"Error: {says}\n")
        wrong = command(server, "view", "socket", "none")
        assert (wrong.returncode, wrong.stderr) == (1, "Error: there is no view 'none'; there are: reviewer\n")

    def test_a_shell_sees_a_view_and_says_that_it_binds_nobody(self, server: Mounted) -> None:
        (server.path / "seen").mkdir()
        (server.path / "seen/.env").write_text("ENV")
        (server.path / "seen/a.txt").write_text("a")
        shown = command(server, "shell", "--view", "reviewer", "--", "ls", "-A", f"{server.path}/seen")
        assert shown.stdout == "a.txt\n"
        says = "shows view 'reviewer', which binds nobody here; to bind a command: exec --view reviewer"
        assert shown.stderr == f"fusebackend: {server.path} {says}\n"
        assert "give --branch or --view" in command(server, "shell", "--view", "a", "--branch", "b").stderr
        wrong = command(server, "shell", "--view", "none", "true")
        assert (wrong.returncode, wrong.stderr) == (1, "Error: there is no view 'none'; there are: reviewer\n")

    def test_rules_of_a_route_that_the_command_line_gives_anew(self, tmp_path: Path) -> None:
        (tmp_path / "ruled.toml").write_text('[default]\nurl = "memory:"\nhide = [".env"]\n')
        (tmp_path / "mnt").mkdir()
        answer = run("mount", tmp_path / "mnt", "--config", tmp_path / "ruled.toml", "--default", "memory:")
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1) and "route '/' has rules there" in answer.stderr


def command(server: Mounted | str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with `--mount`."""
    at = 2 if words[0] == "view" else 1
    return run(*words[:at], "--mount", getattr(server, "path", server), *words[at:])


# --------------------------------------------------------------------------------------------------------------
# A route that hides names, and what a mount keeps of the past: no verb and no tree shows a hidden name or bytes
# --------------------------------------------------------------------------------------------------------------

SECRET = "hunter2-correct-horse"
HIDDEN = ["secret/**", "secret", ".env", "**/.env"]
KEPT_FILES = {
    "a": "one\n",
    "sub/x": "x\n",
    "only/gone": "gone\n",
    ".env": SECRET,
    "sub/.env": SECRET,
    "only/.env": SECRET,
    "secret/key": SECRET,
}
SEEN = {"/a", "/sub", "/sub/x", "/only", "/only/gone"}


def config(tmp_path: Path) -> Path:
    path = tmp_path / "ruled.toml"
    path.write_text(
        f"""
        [default]
        url = "sqlite:{tmp_path}/volume.db"
        hide = {json.dumps(HIDDEN)}
        [routes]
        "/ro" = {{ url = "sqlite:{tmp_path}/ro.db", read_only = true, hide = ["*.key"] }}
        """
    )
    return path


def store(path: str, files: Mapping[str, str]) -> None:
    """Make files, and a snapshot of them, where no rule is."""
    volume = SqliteVolume(path)
    answers = VolumeBackend(volume).upload_files([(f"/{name}", text.encode()) for name, text in files.items()])
    assert [answer.error for answer in answers] == [None] * len(files)
    if "secret/key" in files:
        volume.link(resolve(volume, "/sub/x").found.node, resolve(volume, "/secret").found.node, b"linked")
    volume.take_snapshot("before-the-rule")
    volume.close()


@pytest.fixture
def ruled(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounted]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store(f"{tmp_path}/volume.db", KEPT_FILES)
    store(f"{tmp_path}/ro.db", {"r": "r\n", "r.key": SECRET})
    yield serve("", config=config(tmp_path), options=["snapshots=auto", "history=on"])


def said(path: Path, *words: str) -> str:
    """All that a subcommand says, with status 0 or not."""
    done = run(*words, cwd=path)
    return done.stdout + done.stderr


def test_what_is_hidden_is_in_nothing_that_is_kept(ruled: Mounted) -> None:
    root, kept = ruled.path, ruled.path / ".fusebackend/snapshots"
    with fusebackend.connect(root) as files:
        routes = {each["prefix"]: each["undo"] for each in files.status()["routes"]}
        assert routes == {"/": "instant", "/ro/": "none"}
        assert files.create_snapshot("taken").routes == ["/", "/ro/"]
        for name in ("before-the-rule", "taken"):
            assert everything(kept / name) == SEEN | {"/ro", "/ro/r"}
            for path in (".env", "sub/.env", "secret", "secret/key", "secret/linked", "ro/r.key"):
                refused(errno.ENOENT, lambda path=path, name=name: os.stat(kept / name / path))
            assert os.stat(kept / name / "sub/x").st_nlink == 1 == os.stat(kept / name).st_nlink
            assert (kept / name / "ro/r").read_text() == "r\n"
        (root / "a").write_text("two\n")
        files.write("/sub/new", "new")
        files.create_branch("old", ref="before-the-rule")
        files.create_branch("new")
        for name, text in (("old", "one\n"), ("new", "two\n")):
            branch = root / ".fusebackend/branches" / name
            assert everything(branch) - {"/sub/new"} == SEEN | {"/ro", "/ro/r"}
            assert (branch / "a").read_text() == text
            os.rename(branch / "sub", branch / "moved")
            refused(errno.ENOENT, lambda branch=branch: os.stat(branch / "moved/.env"))
            for path in (".env", "secret"):
                refused(errno.ENOENT, lambda branch=branch, path=path: os.stat(branch / path))
        for path in ("/.env", "/secret/key", "/sub/.env"):
            refused(errno.ENOENT, files.restore, [path], ref="before-the-rule")
            found = files.forget(path, dry_run=True)
            assert (found.unknown, found.live, found.snapshots) == ([path], [], [])
        assert not [each for each in files.changes() if b"secret" in os.fsencode(each.path)]
        assert not files.grep(SECRET, path=f"{root}/.fusebackend/snapshots/taken").matches
    for words in (
        ["diff", "before-the-rule"], ["diff", "old..new"], ["log", "--changes"], ["blame", ".env"],
    ):  # fmt: skip
        answer = said(root, *words)
        assert SECRET not in answer and "key" not in answer and "linked" not in answer, words
        assert ".env" not in answer or words[-1] == ".env", words
        assert "Traceback" not in answer


def test_what_would_touch_what_is_hidden_is_refused_whole(ruled: Mounted, serve: Serve, tmp_path: Path) -> None:
    root = ruled.path
    with fusebackend.connect(root) as files:
        files.create_branch("work")
        branch = root / ".fusebackend/branches/work"
        (branch / "a").write_text("merged\n")
        (branch / "sub/.env").write_text("mine")  # there is none in the branch
        with pytest.raises(PermissionError) as denied:
            files.merge_branch("work")
        assert "'/sub/.env' can't be merged: Permission denied" in str(denied.value)
        assert everything(root) == SEEN | {"/ro", "/ro/r"} and (root / "a").read_text() == "one\n"
        (branch / "sub/.env").unlink()
        (branch / "only/gone").unlink()
        (branch / "only").rmdir()  # it looks empty there, and is not in the mount
        with pytest.raises(PermissionError) as denied:
            files.merge_branch("work")
        assert "'/only' can't be merged" in str(denied.value)
        assert everything(root) == SEEN | {"/ro", "/ro/r"} and (root / "a").read_text() == "one\n"
        (branch / "only").mkdir()
        files.merge_branch("work", paths=["/a"])
        assert (root / "a").read_text() == "merged\n"
    ruled.stop()
    left = {name for name in KEPT_FILES if SECRET in KEPT_FILES[name]}
    without = serve(f"sqlite:{tmp_path}/volume.db", at="without")
    assert {name for name in left if (without.path / name).read_text() == SECRET} == left
