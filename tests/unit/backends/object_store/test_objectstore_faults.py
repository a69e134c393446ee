"""A bucket whose service fails: what was stored stays, what could not be stored is an error and is tried again."""

from __future__ import annotations

import errno
import os

import pytest
from nodes import ME
from services.failing_proxy import failing_bucket

from fusebackend.backends import S3Backend
from fusebackend.protocol import ROOT_NODE
from fusebackend.testing.posix.case import refused

RW = os.O_RDWR


@pytest.fixture
def proxied(seaweedfs):
    """A bucket behind a proxy that can fail."""
    with failing_bucket(seaweedfs) as found:
        yield found


def test_a_full_bucket_is_enospc_and_loses_nothing(proxied):
    proxy, bucket = proxied
    with S3Backend(bucket.name, **bucket.options()) as backend:
        volume = backend.volume
        assert backend.write("/kept", "before").error is None
        node = volume.create(ROOT_NODE, b"new", 0o644, RW, ME).node
        volume.write(node, 0, b"does not fit")
        proxy.answers["PUT"] = (507, "QuotaExceeded")
        refused(errno.ENOSPC, volume.flush, node)
        for refused_verb in (backend.write("/other", "x"), backend.edit("/kept", "before", "after")):
            assert "No space left on device" in refused_verb.error
        assert backend.download_files(["/kept"])[0].content == b"before"
        assert volume.read(node, 0, 100) == b"does not fit"
        proxy.answers.clear()
        volume.flush(node)
        volume.release(node, RW)
        assert bucket.get("new") == b"does not fit"


def test_errors_of_the_service_are_errors_and_are_over_when_it_is_well(proxied):
    proxy, bucket = proxied
    with S3Backend(bucket.name, ttl=0.0, **bucket.options()) as backend:
        assert backend.write("/d/a", "text").error is None
        for status, code, words in ((403, "AccessDenied", "permission_denied"), (404, "NoSuchBucket", "not_found")):
            proxy.answers = dict.fromkeys(("GET", "HEAD", "PUT", "DELETE"), (status, code))
            assert words in str(backend.ls("/d").error)
            assert all(
                done.error for done in (backend.write("/d/b", "x"), backend.move("/d", "/e"), backend.delete("/d/a"))
            )
        proxy.answers.clear()
        assert backend.download_files(["/d/a"])[0].content == b"text"
        assert backend.move("/d", "/e").error is None
        assert [info["path"] for info in backend.ls("/e").entries] == ["/e/a"]
    assert [key for key in bucket.all_keys() if "renames" in key] == []
