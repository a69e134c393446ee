"""`s3:` URLs and what they say when something is wrong: one line, and no secrets in it."""

from __future__ import annotations

import pytest

from fusebackend.backends import S3Backend
from fusebackend.urls import UrlError, open_backend, parse


@pytest.mark.services
def test_a_url_opens_a_bucket(bucket):
    with open_backend(bucket.url("some/place", ttl="0.5", cache_mb="8", on_exists="replace")) as backend:
        assert isinstance(backend, S3Backend)
        assert (backend.volume.ttl_s, backend.on_exists) == (0.5, "replace")
        assert backend.write("/a", "x").error is None
    assert bucket.get("some/place/a") == b"x"


@pytest.mark.services
@pytest.mark.parametrize("wrong", ["bucket", "secret"])
def test_what_is_wrong_is_one_line_without_secrets(bucket, wrong):
    said, instead = {"bucket": ("s3://", "s3://no-"), "secret": ("testsecret", "hushhush")}[wrong]
    url = bucket.url().replace(said, instead)
    with pytest.raises(UrlError) as refusal:
        open_backend(url)
    text = str(refusal.value)
    assert ("there is no bucket" if wrong == "bucket" else "Permission denied") in text
    assert "\n" not in text
    assert "hushhush" not in text
    assert "testsecret" not in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3:bucket", "write s3://BUCKET/PREFIX"),
        ("s3:///prefix", "names no bucket"),
        ("s3://b?colour=blue", "knows no parameter 'colour'"),
        ("s3://b?endpoint=ftp://x", "must be a URL such as"),
        ("s3://b?ttl=soon", "must be a number of seconds"),
        ("s3://b?cache_mb=0", "must be a whole number above 0"),
    ],
)
def test_bad_urls_are_refused_in_one_line(url, words):
    with pytest.raises(UrlError, match=words):
        open_backend(url)


def test_secrets_are_masked():
    shown = parse("s3://b/p?access_key_id=AKIA123&secret_access_key=hush&session_token=hush2&region=r").masked
    assert shown == "s3://b/p?access_key_id=***&secret_access_key=***&session_token=***&region=r"
