"""Find the mount of a path, and its server: mounts inside, over and beside each other, dead and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import ROOT

import fusebackend
from fusebackend.control import rendezvous
from fusebackend.control.client import client_connection as connection_module
from fusebackend.linux.mount_table import MountError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can bind a mount")


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    target.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)


class TestConfusion:
    """A call for one mount never reaches another one."""

    def test_a_mount_point_inside_of_another_mount(self, serve):
        outer = serve("memory:", at="outer")
        inner = serve("memory:", at="outer/inner")
        with fusebackend.connect(inner.path) as client:
            assert client.write("/x", "inner").error is None
            inner.stop()
            assert "lies in no mount" in client.write("/y", "inner").error
        assert not (outer.path / "y").exists()
        with fusebackend.connect(outer.path / "inner") as client:
            assert client.mountpoint == str(outer.path)

    @needs_root
    def test_a_mount_that_another_one_covers(self, serve, tmp_path):
        below = serve("memory:", at="cover/sub")
        other = serve("memory:", at="other")
        (other.path / "sub").mkdir()
        with fusebackend.connect(below.path) as client:
            assert client.write("/x", "below").error is None
            client.close()
            with bound(other.path, tmp_path / "cover"):
                assert rendezvous.split(tmp_path / "cover/sub/x") == (str(tmp_path / "cover"), "/sub/x")
                assert "lies in no mount" in client.write("/y", "below").error
            assert client.write("/z", "below").error is None
        assert os.listdir(other.path) == ["sub"]
        assert sorted(os.listdir(below.path)) == ["x", "z"]

    @needs_root
    def test_two_mounts_on_one_mount_point(self, serve):
        below, above = serve("memory:", at="below"), serve("memory:", at="above")
        with bound(above.path, below.path), fusebackend.connect(below.path) as client:
            assert client.write("/x", "above").error is None
        with fusebackend.connect(below.path) as client:
            assert client.read("/x").error
        assert (above.path / "x").read_text() == "above"

    @needs_root
    def test_a_part_that_is_bound_elsewhere(self, serve, tmp_path):
        mounted = serve("memory:", at="whole")
        (mounted.path / "part").mkdir()
        (mounted.path / "part/file").write_text("text")
        with bound(mounted.path / "part", tmp_path / "bound"):
            assert rendezvous.split(tmp_path / "bound/file") == (str(tmp_path / "bound"), "/part/file")
            with fusebackend.connect(tmp_path / "bound/file") as client:
                assert client.read("/part/file").file_data["content"] == "text"

    @needs_root
    def test_something_else_covers_a_directory_of_the_mount(self, serve, tmp_path):
        mounted = serve("memory:")
        (mounted.path / "covered").mkdir()
        (tmp_path / "plain").mkdir()
        with bound(tmp_path / "plain", mounted.path / "covered"), pytest.raises(MountError, match="lies in no mount"):
            rendezvous.split(mounted.path / "covered/file")

    def test_names_that_only_begin_alike(self, serve, tmp_path):
        serve("memory:", at="agent")
        (tmp_path / "agent2").mkdir()
        with pytest.raises(MountError, match="lies in no mount"):
            fusebackend.connect(tmp_path / "agent2")

    def test_symbolic_links_lead_to_the_mount_they_point_to(self, serve, tmp_path):
        one, other = serve("memory:", at="one"), serve("memory:", at="other")
        (tmp_path / "outside").symlink_to(one.path)
        (one.path / "across").symlink_to(other.path)
        (one.path / "nowhere").symlink_to("/none/at/all")
        found = {}
        for path in (tmp_path / "outside", one.path / "across", one.path / "across/file", one.path / "nowhere"):
            with fusebackend.connect(path) as client:
                found[path.name] = client.mountpoint
        assert found == {
            "outside": str(one.path), "across": str(other.path), "file": str(other.path), "nowhere": str(one.path),
        }  # fmt: skip


class TestServers:
    @pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb", b"a\\040b", "ü ☃".encode(), b"x" * 250])
    def test_any_mount_point(self, serve, name):
        mounted = serve("memory:", at=os.fsdecode(name))
        with fusebackend.connect(mounted.path) as client:
            assert client.hello()["mountpoint"] == client.status()["mountpoint"] == str(mounted.path)
            assert client.write("/\udcff", "text").error is None
        assert os.listdir(os.fsencode(mounted.path)) == [b"\xff"]

    def test_a_server_that_is_stopped(self, serve, monkeypatch):
        monkeypatch.setattr(rendezvous, "ANSWER_TIMEOUT_S", 0.3)
        monkeypatch.setattr(connection_module, "SILENCE_S", 0.1)
        monkeypatch.setattr(connection_module, "ANSWER_TIMEOUT_S", 0.3)
        mounted = serve("memory:")
        with fusebackend.connect(mounted.path) as client:
            mounted.process.send_signal(signal.SIGSTOP)
            try:
                start = time.monotonic()
                with pytest.raises(MountError, match="hangs, or is stopped"):
                    fusebackend.connect(mounted.path)
                assert "hangs, or is stopped" in client.read("/x").error
                assert "hangs, or is stopped" in client.write("/x", "text").error
                assert time.monotonic() - start < 60
            finally:
                mounted.process.send_signal(signal.SIGCONT)
            assert client.ls("/").error is None

    def test_a_server_that_was_killed(self, serve):
        mounted = serve("memory:", at="mnt")
        with fusebackend.connect(mounted.path) as client:
            client.write("/x", "text")
            mounted.process.kill()
            mounted.process.wait()
            for error in (client.read("/x").error, client.write("/y", "").error, client.execute("true").output):
                assert "is gone; mount it again" in error
            with pytest.raises(MountError, match="is gone; mount it again"):
                fusebackend.connect(mounted.path)
            mounted.kill()
            serve("memory:", at="mnt")
            assert client.write("/y", "").error is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    @pytest.mark.parametrize("options", [[], ["allow_other"]])
    def test_another_user_is_told_so(self, serve, options):
        with tempfile.TemporaryDirectory(prefix="fusebackend-") as place:
            os.chmod(place, 0o755)
            mounted = serve("memory:", at=f"{place}/mnt", options=options)
            program = f"import fusebackend\ntry: fusebackend.connect('{place}/mnt')\nexcept OSError as e: print(e)"
            become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", program]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(become, capture_output=True, text=True, env=environment, timeout=30)
            mounted.stop()
        assert "is another user's" in done.stdout, done.stderr

    def test_a_child_has_connections_of_its_own(self, serve):
        mounted = serve("memory:")
        with fusebackend.connect(mounted.path) as client:
            client.write("/x", "parent")
            (kept,) = client._pool._idle
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client.edit("/x", "parent", "child")
                    client.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert client.read("/x").file_data["content"] == "child"
            assert client._pool._idle == [kept], "the child has closed the parent's connection"
