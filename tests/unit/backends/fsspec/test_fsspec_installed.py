"""The protocols that `fusebackend backends` lists, and URLs that can't be opened."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from for_each import for_each

pytest.importorskip("fsspec")


from fusebackend.backends.fsspec import opening
from fusebackend.cli.backends import backends
from fusebackend.urls import UrlError, open_backend


def test_a_protocol_is_installed_or_missing():
    found = opening.installed_protocols()
    assert {"file", "ftp", "zip", "fusebackend"} <= set(found.installed) and not found.missing.keys() & {
        *found.installed
    }


def test_what_a_missing_protocol_needs_is_said(monkeypatch):
    for package in ("paramiko", "s3fs"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    for protocol in ("sftp", "ssh"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    said = CliRunner().invoke(backends).output
    assert 'not installed: sftp, ssh: SFTPFileSystem requires "paramiko" to be installed' in " ".join(said.split())
    told = {each["scheme"]: each for each in json.loads(CliRunner().invoke(backends, ["--json"]).output)}["fsspec"]
    assert "s3fs" in told["missing"]["s3"] and "ftp" in told["installed"] and "sftp" not in told["installed"]


def test_without_fsspec_its_extra_is_said(monkeypatch):
    there = opening.find_spec
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == "fsspec" else there(name))
    said = CliRunner().invoke(backends).output
    assert "needs fsspec: pip install 'fusebackend[fsspec]'" in said and "protocols:" not in said


@for_each(
    ("place", "message"),
    [
        ("x", "names no file system; write fsspec:PROTOCOL://PLACE"),
        ("/srv/data", "names no file system; write fsspec:PROTOCOL://PLACE"),
        ("nope://x", "can't be opened: Protocol not known: nope"),
        ("file://{tmp}/none", "can't be opened: No such file or directory: '{tmp}/none'"),
        ("zip://?fo={tmp}/none.zip", "can't be opened: No such file or directory: '{tmp}/none.zip'"),
    ],
)
def test_a_url_that_can_not_be_opened(tmp_path: Path, place: str, message: str) -> None:
    url = "fsspec:" + place.format(tmp=tmp_path)
    with pytest.raises(UrlError, match=f"^'{re.escape(url)}' {re.escape(message.format(tmp=tmp_path))}$"):
        open_backend(url)
