"""E2B and Modal, through stand-ins: objects with the calls of the SDKs that are used, and their signatures and habits.

The services can't be reached by tests. What the stand-ins have was read in e2b 2.63 and modal 1.6.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import sandboxes
from raising import raising

from fusebackend.backends import E2BBackend, ModalBackend
from fusebackend.testing.conformance import BatchCases, EditingCases, MovingCases


def run(path: Path, words: list[str], cwd: str, timeout: float) -> subprocess.CompletedProcess[bytes]:
    command = [str(path / "sh"), *words]
    return subprocess.run(command, cwd=cwd, env={"PATH": str(path)}, capture_output=True, timeout=timeout, check=False)


# -- e2b ---------------------------------------------------------------------------------------------------------------


SandboxException = type("SandboxException", (Exception,), {})
TimeoutException = type("TimeoutException", (SandboxException,), {})


class CommandExitException(SandboxException):
    def __init__(self, stdout: str, stderr: str, exit_code: int) -> None:
        self.stdout, self.stderr, self.exit_code = stdout, stderr, exit_code


class E2B:
    """`e2b.Sandbox`: text for output, an exception for a code that is not 0, files as the user has them."""

    def __init__(self, path: Path) -> None:
        self.sandbox_id = "e2b-1"
        self.commands = self.files = self
        self._path = path

    def run(self, cmd: str, background=None, envs=None, user=None, cwd: str | None = None, on_stdout=None,
            on_stderr=None, stdin=None, timeout: float | None = 60, request_timeout=None, *,
            retain_output=True):  # fmt: skip
        assert cwd is not None and timeout is not None
        try:
            done = run(self._path, ["-c", cmd], cwd, timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutException("context deadline exceeded") from None
        stdout, stderr = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        if done.returncode != 0:
            raise CommandExitException(stdout, stderr, done.returncode)
        return types.SimpleNamespace(stdout=stdout, stderr=stderr, exit_code=0, error=None)

    def write_files(self, files, user=None, request_timeout=None, gzip=False, use_octet_stream=None, metadata=None):
        for entry in files:
            assert set(entry) == {"path", "data"}
            os.makedirs(os.path.dirname(entry["path"]), exist_ok=True)
            Path(entry["path"]).write_bytes(entry["data"])
        return [types.SimpleNamespace(path=entry["path"]) for entry in files]

    def read(self, path: str, format="text", user=None, request_timeout=None, gzip=False, stream_idle_timeout=None):
        data = Path(path).read_bytes()
        return bytearray(data) if format == "bytes" else data.decode()


@pytest.fixture
def e2b(tmp_path, monkeypatch):
    module = types.ModuleType("e2b")
    module.CommandExitException, module.TimeoutException = CommandExitException, TimeoutException
    monkeypatch.setitem(sys.modules, "e2b", module)
    (tmp_path / "root").mkdir()
    return E2BBackend(E2B(sandboxes.tools("gnu", tmp_path / "tools")), root=str(tmp_path / "root"))


# -- modal -------------------------------------------------------------------------------------------------------------


class Process:
    """`modal.container_process.ContainerProcess`, of bytes."""

    def __init__(self, stdout: bytes, stderr: bytes, code: int) -> None:
        self.stdout = types.SimpleNamespace(read=lambda: stdout)
        self.stderr = types.SimpleNamespace(read=lambda: stderr)
        self._code = code

    def wait(self) -> int:
        return self._code


class Modal:
    """`modal.Sandbox`: a process for each command, -1 when its time is over, and a file system of bytes."""

    object_id = "sb-1"

    def __init__(self, path: Path) -> None:
        self.filesystem = self
        self._path = path

    def exec(self, *args: str, stdout=None, stderr=None, timeout: int | None = None, workdir: str | None = None,
             env=None, secrets=None, text: bool = True, bufsize=-1, pty: bool = False):  # fmt: skip
        assert args[0] == "sh" and isinstance(timeout, int) and workdir is not None and not text
        try:
            done = run(self._path, list(args[1:]), workdir, timeout)
        except subprocess.TimeoutExpired:
            return Process(b"", b"", -1)
        return Process(done.stdout, done.stderr, done.returncode)

    def write_bytes(self, data: bytes, remote_path: str) -> None:
        Path(remote_path).write_bytes(data)

    def read_bytes(self, remote_path: str) -> bytes:
        return Path(remote_path).read_bytes()


@pytest.fixture
def modal(tmp_path):
    (tmp_path / "root").mkdir()
    return ModalBackend(Modal(sandboxes.tools("gnu", tmp_path / "tools")), root=str(tmp_path / "root"))


# -- cases -------------------------------------------------------------------------------------------------------------


class TestE2B(BatchCases, EditingCases):
    @pytest.fixture
    def backend(self, e2b):
        return e2b


class TestModal(BatchCases, MovingCases):
    @pytest.fixture
    def backend(self, modal):
        return modal


@pytest.fixture(params=["e2b", "modal"])
def hosted(request):
    return request.getfixturevalue(request.param)


def test_commands(hosted):
    for command, output, code in [
        ("echo out; echo err >&2", "out\n[stderr] err", 0),
        ("printf x; exit 3", "x\n\nExit code: 3", 3),
        ("pwd", f"{hosted.root}\n", 0),
        ("sleep 100", "Error: Command timed out after 1 seconds.", 124),
    ]:
        response = hosted.execute(command, timeout=1 if code == 124 else None)
        assert (response.output, response.exit_code) == (output, code)
    assert hosted.execute("").exit_code == 1
    with pytest.raises(ValueError, match="above 0"):
        hosted.execute("true", timeout=0)
    hosted.max_output_bytes = 5
    assert hosted.execute("printf 0123456789").output == "01234\n\n... Output truncated at 5 bytes."


def test_the_id_is_the_services(hosted):
    assert hosted.id in ("e2b-1", "sb-1")


def test_an_sdk_that_raises(hosted):
    hosted.sandbox.run = hosted.sandbox.exec = raising(SandboxException("the service\nis away"))
    said = "SandboxException: the service is away"
    assert hosted.execute("true").output == f"Error executing command: {said}"
    assert said in hosted.read("/x").error and "\n" not in hosted.read("/x").error
    (response,) = hosted.upload_files([("/x", b"x" * 100_000)])
    assert said in response.error


def test_large_files_go_by_the_sdk(hosted):
    content = os.urandom(300_000)
    assert hosted.upload_files([("/dir/large", content), ("/dir/small", b"x")])[0].error is None
    assert [response.content for response in hosted.download_files(["/dir/large", "/dir/small"])] == [content, b"x"]
    hosted.sandbox.read = hosted.sandbox.read_bytes = raising(ZeroDivisionError())
    assert hosted.download_files(["/dir/large"])[0].error.startswith("ZeroDivisionError")
    assert hosted.download_files(["/dir/small"])[0].content == b"x"
