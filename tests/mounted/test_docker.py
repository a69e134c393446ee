"""A container's files on a mount: changes by its commands show in the mount, and the other way round."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from eventually import eventually
from programs import command, sh

from fusebackend.backends import DockerBackend
from fusebackend.testing.posix.case import refused


@pytest.fixture
def engine(docker_engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", docker_engine.url)
    return docker_engine


@pytest.fixture
def box(engine):
    """Start a container, and run commands in it without the mount."""
    with engine.container(name="box") as container, DockerBackend(container="box", base_url=engine.url) as backend:
        yield backend
        container.reload()
        assert container.status == "running", "somebody else's container is left alone"


def test_both_sides_see_the_same_files(box, serve):
    there = serve("memory:", routes={"/box": "docker:box"}).path / "box"
    assert (there / "etc/passwd").read_text().startswith("root:x:0:0:")
    assert {"bin", "etc", "tmp"} <= set(os.listdir(there))

    sh("mkdir -p work/deep; printf 'by the kernel' > work/deep/one.txt", there)
    sh("cp work/deep/one.txt 'work/-n $(x) \n'", there)
    assert box.execute("cat /work/deep/one.txt; ls -A /work/deep").output == "by the kernelone.txt\n"
    assert box.execute("cat '/work/-n $(x) \n'").output == "by the kernel"

    box.execute("printf 'by a command' > /work/deep/two.txt; printf longer >> /work/deep/one.txt")
    eventually(lambda: (there / "work/deep/two.txt").exists())
    assert (there / "work/deep/two.txt").read_text() == "by a command"
    eventually(lambda: (there / "work/deep/one.txt").read_text() == "by the kernellonger")

    sh("mv work/deep work/moved; rm work/moved/two.txt; echo end >> work/moved/one.txt", there)
    assert box.execute("cd /work && ls -A moved; cat moved/one.txt").output == "one.txt\nby the kernellongerend\n"
    sh("rm -r work", there)
    assert box.execute("ls -d /work").exit_code == 1


def test_what_a_container_can_not_keep_is_said(box, serve):
    there = serve("memory:", routes={"/box": "docker:box?root=/tmp"}).path / "box"
    box.execute("mkfifo /tmp/fifo; ln -s nowhere /tmp/dangling; ln -s /etc/passwd /tmp/link")
    assert {"fifo", "dangling", "link"} <= set(os.listdir(there))
    assert (there / "link").read_text().startswith("root:")
    for name in ("fifo", "dangling"):
        with pytest.raises(OSError):
            (there / name).read_bytes()
    refused(errno.EPERM, os.symlink, "x", there / "made")
    box.execute("rm /tmp/fifo /tmp/dangling /tmp/link")


def test_a_container_that_stops_hurts_nobody_else(engine, box, serve):
    server = serve("memory:", routes={"/box": "docker:box", "/notes": "memory:"})
    (server.path / "box/tmp/a").write_text("x")
    with contextlib.closing(engine.client()) as client:
        container = client.containers.get("box")
        container.stop(timeout=0)
        with pytest.raises(OSError):
            (server.path / "box/tmp/b").write_text("x")
        (server.path / "notes/n").write_text("works")
        container.start()
    eventually(lambda: _reads(server.path / "box/tmp/a", "x"))
    server.expected_log = "/tmp/b was closed unsaved"
    server.stop()
    assert box.execute("cat /tmp/b").output == "x", "it was kept, and stored when that was possible"


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False


def test_a_mount_that_can_not_be_made_says_why_in_one_line(box, tmp_path):
    (tmp_path / "mnt").mkdir()
    for url, said in (
        ("docker:localhost:1/none", "There is no image 'localhost:1/none' here, and it can't be pulled: "),
        ("docker:box?root=/none", "Directory '/none' of container 'box': No such file or directory"),
    ):
        done = command("mount", tmp_path / "mnt", "--foreground", "--default", url)
        assert done.returncode != 0
        (error,) = [line for line in done.stderr.splitlines() if " INFO " not in line]
        assert error.startswith(f"Error: '{url}': {said}")
