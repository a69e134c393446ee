"""`fusebackend.mount()`, each case in a process of its own with a limit: a process must be able to fail alone."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from for_each import for_each
from programs import python

from fusebackend.linux import mount_table as table

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

PRELUDE = """
import os, sys, threading
import fusebackend
from fusebackend import CompositeBackend, MountError
from fusebackend.backends import InMemoryBackend, SqliteBackend, StateBackend
point, directory = sys.argv[1:]

def text(name):
    with open(f"{point}/{name}") as file:
        return file.read()
"""


class Script:
    """Runs Python code that mounts on `point`."""

    def __init__(self, point: Path, directory: Path) -> None:
        self.point = point
        self.directory = directory

    def words(self, code: str) -> list[str]:
        return [PRELUDE + textwrap.dedent(code), str(self.point), str(self.directory)]

    def __call__(self, code: str, *, logged: str = "", status: int = 0) -> str:
        """Run the code and return its output; it must log nothing but `logged`, and leave no mount unless it ends by a
        signal."""
        done = python(*self.words(code))
        assert done.returncode == status, done.stderr
        assert re.fullmatch(logged, done.stderr, re.DOTALL), done.stderr
        assert status < 0 or table.mount_at(str(self.point)) is None
        return done.stdout


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    point = tmp_path / "agent"
    point.mkdir()
    yield Script(point, tmp_path)
    for entry in reversed(table.mounts()):
        if entry.mountpoint.startswith(f"{tmp_path}/"):
            subprocess.run(["fusermount3", "-u", "-z", "--", entry.mountpoint], check=False, timeout=LIMIT_S)


SCRIPTS = {
    "every verb arrives": """
        import asyncio
        with fusebackend.mount(InMemoryBackend(), point) as files:
            assert [each.error for each in files.upload_files([("/x/a.py", b"one\\ntwo\\n")])] == [None]
            assert files.download_files(["/x/a.py"])[0].content == b"one\\ntwo\\n"
            assert [match["line"] for match in files.grep("two").matches] == [2]
            assert [match["path"] for match in files.glob("**/*.py").matches] == ["/x/a.py"]
            assert files.move("/x/a.py", "/x/b.py").error is None
            assert "     1\\tone" in str(asyncio.run(files.aread("/x/b.py")))
            assert [entry["path"] for entry in files.ls_info("/x")] == ["/x/b.py"]
            assert files.id == f"fusebackend:{point}"
            assert isinstance(files, fusebackend.SandboxBackendProtocol)
            assert files.execute("cat /x/b.py | sort > /sorted; ls /").output == "sorted\\nx\\n"
            assert files.read("/sorted").file_data["content"] == "one\\ntwo\\n"
            assert files.stat("/sorted").size == 8
            with files.watch("/x") as watch:
                os.unlink(os.path.join(point, "x/b.py"))
                event = watch.get(20)
                assert (event.kind, event.path, event.source) == ("deleted", "/x/b.py", "mount")
    """,
    "the name can be imported too, and close may be called twice": """
        from fusebackend import mount
        import fusebackend.fuse.session
        with mount(InMemoryBackend(), point) as files:
            assert files.mountpoint == point
            assert os.path.ismount(point)
            files.close()
            files.close()
            assert not os.path.ismount(point)
    """,
    "the backend is not closed": """
        with SqliteBackend(f"{directory}/x.db") as backend:
            for number in range(2):
                with fusebackend.mount(backend, point) as files:
                    with open(f"{point}/{number}", "w") as file:
                        file.write("kept")
                assert files.read(f"/{number}").error is None
            assert [entry["path"] for entry in backend.ls("/").entries] == ["/0", "/1"]
    """,
    "an error in the block unmounts and comes through": """
        try:
            with fusebackend.mount(InMemoryBackend(), point):
                raise KeyError("mine")
        except KeyError as error:
            assert error.args == ("mine",)
        assert not os.path.ismount(point)
    """,
    "unmounted from outside": """
        import subprocess
        with fusebackend.mount(InMemoryBackend(), point) as files:
            subprocess.run(["fusermount3", "-u", point], check=True)
            assert not os.path.ismount(point)
            assert files.write("/a", "still a backend").error is None
    """,
    "it is shown by status": """
        from fusebackend.linux.mount_table import probe
        with fusebackend.mount(InMemoryBackend(), point, read_only=True):
            (state,) = probe(point)
            assert (state.state, state.pid) == ("alive", os.getpid())
            assert state.status["read_only"] is True
    """,
    "read only is for the mount": """
        with fusebackend.mount(InMemoryBackend(), point, read_only=True) as files:
            try:
                open(f"{point}/a", "w")
            except OSError as error:
                assert error.strerror == "Read-only file system"
            else:
                raise AssertionError("it was writable")
            assert files.write("/a", "a").error is None
            assert text("a") == "a"
    """,
    "a factory needs a runtime": """
        from types import SimpleNamespace
        runtime = SimpleNamespace(state={"files": {}})
        for factory in (StateBackend, lambda runtime: StateBackend(runtime)):
            try:
                fusebackend.mount(factory, point)
            except TypeError as error:
                assert "makes backends and is none: give mount() a runtime=" in str(error)
            else:
                raise AssertionError("it was taken")
            with fusebackend.mount(factory, point, runtime=runtime) as files:
                with open(f"{point}/a.txt", "w") as file:
                    file.write("a")
            assert "/a.txt" in runtime.state["files"]
            routed = CompositeBackend(InMemoryBackend(), {"/state/": factory})
            try:
                fusebackend.mount(routed, point)
            except TypeError as error:
                assert "called with a runtime" in str(error)
            else:
                raise AssertionError("it was taken")
            with fusebackend.mount(routed, point, runtime=runtime):
                assert text("state/a.txt") == "a"
    """,
    "what fails in the serving thread": """
        import pyfuse3
        def refuse(*arguments): raise RuntimeError("fuse_session_mount failed")
        pyfuse3.init, init = refuse, pyfuse3.init
        try:
            fusebackend.mount(InMemoryBackend(), point)
        except OSError as error:
            assert "fuse_session_mount failed" in str(error)
        else:
            raise AssertionError("it was taken")
        pyfuse3.init = init
        with fusebackend.mount(InMemoryBackend(), point) as files:
            assert files.write("/a", "a").error is None
    """,
}


@for_each("code", SCRIPTS.values(), ids=SCRIPTS)
def test_what_a_process_does_with_its_mount(script: Script, code: str) -> None:
    script(code)


class TestTwoFaces:
    def test_a_route_that_another_process_serves(self, script: Script, tmp_path: Path) -> None:
        other = mounts.start(tmp_path / "other", "memory:")
        try:
            script(
                f"""
                with fusebackend.connect({str(other.path)!r}) as far:
                    routed = CompositeBackend(InMemoryBackend(), {{"/far/": far}})
                    with fusebackend.mount(routed, point) as files, fusebackend.connect(point) as near:
                        assert files.write("/far/x", "1").error is None
                        assert text("far/x") == near.read("/far/x").file_data["content"] == "1"
                        with open(f"{{point}}/far/y", "w") as file:
                            file.write("2")
                        assert near.move("/far/y", "/far/z").error is None
                        assert sorted(os.listdir(f"{{point}}/far")) == ["x", "z"]
                """
            )
            assert (other.path / "z").read_text() == "2"
            other.stop()
        finally:
            other.kill()

    def test_merges_by_the_process_and_over_the_socket_wait_for_one_another(self, script: Script) -> None:
        script("""
            from time import sleep
            from fusebackend.trees.merge.merges import Merges

            running, most, plain = [], [], Merges._merge

            def slow(*given):
                running.append(1)
                most.append(len(running))
                sleep(0.5)
                running.pop()
                return plain(*given)

            Merges._merge = slow
            with fusebackend.mount(InMemoryBackend(), point) as files, fusebackend.connect(point) as near:
                files.create_branch("b")
                merges = [threading.Thread(target=each.merge_branch, args=("b",)) for each in (files, near)]
                for merge in merges:
                    merge.start()
                for merge in merges:
                    merge.join()
            assert most == [1, 1], most
        """)


class TestLife:
    def test_the_end_of_the_interpreter_unmounts(self, script: Script) -> None:
        script("""
            backend = SqliteBackend(f"{directory}/x.db")
            files = fusebackend.mount(backend, point)
            assert files.write("/a", "kept").error is None
        """)
        assert (
            script("""
            with SqliteBackend(f"{directory}/x.db") as backend:
                print(backend.download_files(["/a"])[0].content)
        """)
            == "b'kept'\n"
        )

    def test_ctrl_c_unmounts(self, script: Script) -> None:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                *script.words("""
                import signal, time
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
                with fusebackend.mount(InMemoryBackend(), point):
                    print("ready", flush=True)
                    time.sleep(50)
            """),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert table.mount_at(str(script.point)) is None

    def test_a_dead_mount_is_replaced(self, script: Script) -> None:
        script(
            """
            fusebackend.mount(InMemoryBackend(), point)
            os.kill(os.getpid(), 9)
            """,
            status=-signal.SIGKILL,
        )
        assert table.mount_at(str(script.point)) is not None
        script("""
            with fusebackend.mount(InMemoryBackend(), point):
                assert os.listdir(point) == []
        """)


class TestRefusals:
    def test_a_second_mount_names_the_way_out(self, script: Script) -> None:
        (script.directory / "second").mkdir()
        said = script("""
            with fusebackend.mount(InMemoryBackend(), point):
                try:
                    fusebackend.mount(InMemoryBackend(), f"{directory}/second")
                except MountError as error:
                    print(error)
                assert os.path.ismount(point)
            fusebackend.mount(InMemoryBackend(), f"{directory}/second").close()
        """)
        assert said.startswith(f"this process has a mount already, on '{script.point}', and pyfuse3 can hold only one")
        assert "CompositeBackend" in said
        assert "'fusebackend mount'" in said

    def test_what_can_not_be_mounted(self, script: Script) -> None:
        """And nothing is left that would be in the way of the next one."""
        said = script("""
            for backend, place, options in (
                ("a text", point, []), (None, point, []), (7, point, []), (InMemoryBackend(), point + "/no", []),
                (InMemoryBackend(), directory, []), (InMemoryBackend(), point, ["nonsense"]),
            ):
                try:
                    fusebackend.mount(backend, place, options=options)
                except Exception as refusal:
                    print(type(refusal).__name__, refusal)
                else:
                    raise AssertionError("it was taken")
                fusebackend.mount(InMemoryBackend(), point).close()
        """)
        wanted = [
            "TypeError .*is no backend", "TypeError .*is no backend", "TypeError .*is no backend",
            "MountError .*does not exist", "MountError .*is not empty", "ConfigError .*unknown option '-o nonsense'",
        ]  # fmt: skip
        for line, pattern in zip(said.splitlines(), wanted, strict=True):
            assert re.match(pattern, line), line

    def test_what_fails_at_the_end_is_raised_by_close(self, script: Script) -> None:
        script(
            """
            backend = InMemoryBackend()
            files = fusebackend.mount(backend, point)
            def full(): raise OSError(28, "No space left on device")
            backend.volume.sync = full
            try:
                files.close()
            except OSError as error:
                assert error.errno == 28
            else:
                raise AssertionError("the error was lost")
            files.close()
            assert not os.path.ismount(point)
        """,
            logged=".*No space left on device.*",
        )


def test_a_mount_that_ends_before_it_is_ready_is_none(script: Script) -> None:
    said = script("""
        from fusebackend.server.assemble import LiveMount
        LiveMount.run = lambda live, on_ready: None  # as when it is unmounted from outside at once
        try:
            fusebackend.mount(InMemoryBackend(), point)
        except MountError as error:
            print(error.strerror)
    """)
    assert said == f"'{script.point}' was unmounted before it was ready\n"


def test_a_new_process_asks_the_mount_of_the_one_that_begins_it(script: Script) -> None:
    """For its directory, for its program, and by closing what that has open; while other threads begin more."""
    code = """
        import shutil, subprocess

        def begin(name):
            for _ in range(20):
                with open(f"{point}/{name}", "w") as file:
                    file.write("x")
                    assert subprocess.run(["pwd"], cwd=point, capture_output=True, text=True).stdout == f"{point}\\n"
                    subprocess.run([f"{point}/true"], check=True)
                    subprocess.run([f"{point}/true"], check=True, close_fds=False)

        with fusebackend.mount(InMemoryBackend(), point):
            shutil.copy(shutil.which("true"), f"{point}/true")
            threads = [threading.Thread(target=begin, args=(f"file{number}",)) for number in range(4)]
            for each in threads: each.start()
            for each in threads: each.join()
        assert subprocess._USE_VFORK and subprocess._USE_POSIX_SPAWN
        print("done")
    """
    assert script(code) == "done\n"


def test_connect_without_a_path_takes_the_mount_of_the_environment(script: Script) -> None:
    said = script("""
        with fusebackend.mount(InMemoryBackend(), point) as files:
            files.write("/a", "one")
            os.environ["FUSEBACKEND_MOUNT"] = point
            with fusebackend.connect() as client:
                print(client.mountpoint == point, client.read("/a").file_data["content"])
            del os.environ["FUSEBACKEND_MOUNT"]
            try:
                fusebackend.connect()
            except MountError as error:
                print(error)
    """)
    assert said.splitlines() == [
        "True one",
        "say which mount: give connect() a path in it, or set FUSEBACKEND_MOUNT",
    ]
