"""`s3:` URLs and what they say when something is wrong: one line, and no secrets in it."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from for_each import for_each
from obstore.store import LocalStore

from fusebackend.backends import S3Backend
from fusebackend.backends.object_store.remote import ObjectStoreBackend
from fusebackend.urls import UrlError, open_backend


def test_a_url_opens_a_bucket(bucket):
    with open_backend(bucket.url("some/place", ttl="0.5", cache_mb="8", on_exists="replace")) as backend:
        assert isinstance(backend, S3Backend)
        assert (backend.volume.ttl_s, backend.on_exists) == (0.5, "replace")
        assert backend.write("/a", "x").error is None
    assert bucket.get("some/place/a") == b"x"


@pytest.mark.parametrize(
    ("said", "instead", "words"),
    [
        ("s3://", "s3://no-", "there is no bucket 'no-test-"),
        ("testsecret", "hushhush", "the bucket can't be read: Permission denied (SignatureDoesNotMatch)"),
    ],
)
def test_what_is_wrong_is_one_line_without_secrets(bucket, tmp_path, said, instead, words):
    (tmp_path / "mnt").mkdir()
    url = bucket.url().replace(said, instead)
    command = [sys.executable, "-m", "fusebackend", "mount", tmp_path / "mnt", "--foreground", "--default", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    (text,) = (done.stdout + done.stderr).splitlines()
    assert words in text
    assert "hushhush" not in text
    assert "testsecret" not in text


def test_nobody_at_the_endpoint_is_said_in_one_line(caplog):
    why = r"the bucket can't be read: the service does not answer \(Connection refused\)"
    with pytest.raises(UrlError, match=rf"^'s3://b\?.*': {why}$"):
        open_backend("s3://b?endpoint=http://127.0.0.1:9&access_key_id=a&secret_access_key=b")
    assert caplog.records == []


def test_credentials_that_are_missing_are_said_so(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    why = "no credentials are given, and the machine's metadata service gives none"
    with pytest.raises(UrlError, match=rf"the bucket can't be read: the service does not answer \({why}\)$"):
        open_backend("s3://b?endpoint=http://127.0.0.1:9")


def test_a_store_that_could_take_no_file_is_refused_at_once(tmp_path):
    with pytest.raises(OSError, match="a LocalStore keeps no attributes") as raised:
        ObjectStoreBackend(LocalStore(tmp_path))
    assert raised.value.errno == errno.ENOTSUP


def test_a_missing_extra_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr("fusebackend.base.extras.find_spec", lambda name: None)
    for url in ("s3://b", "gs://b", "az://b"):
        with pytest.raises(UrlError, match=r"needs obstore, which is not installed: pip install 'fusebackend\[s3\]'$"):
            open_backend(url)


@for_each(
    ("url", "words"),
    [
        ("s3:bucket", "write s3://BUCKET/PREFIX"),
        ("s3:///prefix", "names no bucket"),
        ("s3://b?colour=blue", "knows no parameter 'colour'"),
        ("s3://b?endpoint=ftp://x", "must be a URL such as"),
        ("s3://b?ttl=soon", "must be a number of seconds"),
        ("s3://b?ttl=later", "must be a number of seconds"),
        ("az://b", "Account must be specified"),
        ("s3://b?cache_mb=0", "must be a whole number above 0"),
    ],
)
def test_bad_urls_are_refused_in_one_line(url, words):
    with pytest.raises(UrlError, match=words):
        open_backend(url)
