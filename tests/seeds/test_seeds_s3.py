"""The seeds' sample of a backend in S3 (*custom backends*, Korean), with `S3Backend` of `fusebackend.backends`.

The sample writes the class itself, over boto3. Ours has its name, its arguments and its answers; where it was wrong,
the test says what is right.
"""

from __future__ import annotations

import errno
import subprocess

import pytest
from seed_backends import SeedS3Backend

from fusebackend.backends import CompositeBackend, S3Backend, StateBackend
from fusebackend.testing.posix.case import refused


@pytest.fixture
def environment(seaweedfs, monkeypatch):
    """As for boto3, the service and the keys are known from the environment."""
    known = {"ENDPOINT_URL": seaweedfs.endpoint, "ACCESS_KEY_ID": seaweedfs.key, "SECRET_ACCESS_KEY": seaweedfs.secret}
    for name, value in known.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def backend(bucket, environment):
    with S3Backend(bucket=bucket.name, prefix="agent/files/", region="us-east-1") as backend:
        yield backend


def test_a_path_is_a_key_below_the_prefix(backend, bucket):
    bucket.put("agent/files/theirs.txt", b"from another tool\n")
    assert backend.write("/notes/a.md", "one\ntwo\n").path == "/notes/a.md"
    assert bucket.get("agent/files/notes/a.md") == b"one\ntwo\n"
    assert "from another tool" in backend.read("/theirs.txt")


def test_a_route_in_a_composite(bucket, environment):
    with S3Backend(bucket=bucket.name) as s3:
        composite = CompositeBackend(default=StateBackend(), routes={"/s3/": s3})
        assert composite.write("/s3/report.md", "# Report\n").error is None
        assert bucket.get("report.md") == b"# Report\n"
        assert [info["path"] for info in composite.ls_info("/")] == ["/s3/"]


def test_the_sample_itself_on_a_mount(bucket, environment, monkeypatch, serve):
    """As it is in the seed, over boto3, with the three verbs that it has."""
    monkeypatch.setenv("SAMPLE_BUCKET", bucket.name)
    SeedS3Backend(bucket.name, prefix="agent").write("/docs/theirs.txt", "größer\n")
    server = serve("memory:", routes={"/s3": "python:seed_backends:sample_in_s3"})
    route = server.path / "s3"
    assert [entry.name for entry in route.iterdir()] == ["docs"]
    assert (route / "docs/theirs.txt").read_text() == "größer\n"
    subprocess.run(
        ["sh", "-c", "printf 'one\ntwo' > ours.txt && cat docs/theirs.txt > docs/copy.txt"], cwd=route, check=True
    )
    assert SeedS3Backend(bucket.name, prefix="agent").read("/docs/copy.txt") == "     1\tgrößer"
    assert (route / "ours.txt").read_bytes() == b"one\ntwo"
    refused(
        errno.EEXIST, (route / "ours.txt").write_text, "three\n"
    )  # it has neither edit nor delete, and its write refuses
    assert (route / "ours.txt").read_bytes() == b"one\ntwo"
    with pytest.raises(OSError, match="Invalid or incomplete multibyte"):
        (route / "image.png").write_bytes(b"\x89PNG\xff")
