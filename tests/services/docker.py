"""A throwaway Docker engine: its own dockerd on a socket in a temporary directory, without a network, and an image.

    def test_something(docker_engine):            # the fixture in conftest.py, one engine for the session
        DockerBackend(docker_engine.image, base_url=docker_engine.url)

No registry is used: the image is made of this machine's busybox. The engine is this process's child and ended by its
process id, as is the containerd that it starts; the kernel ends it when the tests are killed. `remove` unmounts all
that is still mounted in its directory, and removes it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fusebackend.backends.sandbox.docker_exec import connect
from services.program import LIMIT_S, Program

IMAGE = "fusebackend-test:latest"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"


def missing() -> str | None:
    """Return the reason why no engine can start on this machine, or None."""
    for program, package in (("dockerd", "docker.io"), ("busybox", "busybox-static")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: {package})"
    if find_spec("docker") is None:
        return "the Docker SDK is not installed (pip install 'fusebackend[docker]')"
    if os.geteuid() != 0:
        return "only root can start a Docker engine"
    return None


class DockerEngine(Program):
    """One engine. `start` and `stop` may follow each other; `remove` ends it for good."""

    image = IMAGE
    name = "dockerd"

    def __init__(self) -> None:
        super().__init__("docker")

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/docker.sock"

    def client(self) -> Any:
        """Return a client of the SDK; the caller closes it."""
        import docker

        return docker.DockerClient(base_url=self.url, timeout=60)

    def start(self) -> None:
        """Start the engine. If it fails the test is skipped, for some machines can't run one."""
        command = [
            "--pdeathsig=TERM", "--", "dockerd", "--host", self.url,
            "--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec",
            "--pidfile", f"{self.directory}/docker.pid", "--iptables=false", "--ip6tables=false", "--bridge=none",
            "--default-ulimit", "nofile=1024:1024",
        ]  # fmt: skip
        try:
            self.run(command)
        except pytest.fail.Exception as failed:
            self._end_containerd()
            pytest.skip(str(failed).replace("\n", " ")[-600:])

    def answers(self) -> bool:
        try:
            with contextlib.closing(connect(self.url)):  # a failed ping of the SDK alone would leave its socket open
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End the engine and its containers."""
        try:
            self.end(signal.SIGTERM)
        finally:
            self._end_containerd()

    def _end_containerd(self) -> None:
        """Kill a containerd that is left. dockerd ends its own, unless it was killed itself."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int((self.directory / "exec/containerd/containerd.pid").read_text())
            if str(self.directory) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
            for mount in reversed(mounts):
                if mount.startswith(f"{self.directory}/"):
                    subprocess.run(["umount", "-l", mount], check=True, timeout=LIMIT_S)
            super().remove()

    # -- images and containers ---------------------------------------------------------------------------------

    def make_image(self) -> None:
        with contextlib.closing(self.client()) as client:
            name, _, tag = IMAGE.partition(":")
            client.api.import_image_from_data(_root_filesystem(), repository=name, tag=tag)
            client.images.get(IMAGE)

    @contextlib.contextmanager
    def container(self, **options: Any) -> Iterator[Any]:
        """Run a container for the length of a block, started by the test and not by a backend."""
        with contextlib.closing(self.client()) as client:
            made = client.containers.create(
                IMAGE, entrypoint="sh", command=["-c", "while :; do sleep 1000; done"],
                **{"network_mode": "none", **options},
            )  # fmt: skip
            try:
                made.start()
                yield made
            finally:
                made.remove(force=True)

    def containers(self) -> list[str]:
        """Return the ids of all containers, running or not."""
        with contextlib.closing(self.client()) as client:
            return [container["Id"] for container in client.api.containers(all=True)]


def _root_filesystem() -> bytes:
    """Make a tar of busybox, a link to it for each of its tools, and the directories that programs expect."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    tools = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=30).stdout.split()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("home", 0o755),
                           ("home/agent", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, mode
            if name == "home/agent":
                member.uid = member.gid = 1000
            archive.addfile(member)
        archive.add(os.path.realpath(busybox), "bin/busybox")
        for tool in tools:
            if tool != "busybox":
                link = tarfile.TarInfo(f"bin/{tool}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        for name, text in (("etc/passwd", PASSWD), ("etc/group", "root:x:0:\nagent:x:1000:\n")):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return file.getvalue()


@contextlib.contextmanager
def running() -> Iterator[DockerEngine]:
    """Run an engine with the image for the length of a block. Skip or fail the test where none can run."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    engine = DockerEngine()
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.remove()
