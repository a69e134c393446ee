"""The protocols that `fusebackend backends` lists."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("fsspec")

import fsspec

from fusebackend.backends.fsspec import installed
from fusebackend.cli.backends import backends


def test_a_protocol_is_listed_as_installed_if_and_only_if_it_can_be_imported():
    found = installed.installed_protocols()
    assert {"file", "ftp", "zip", "fusebackend"} <= set(found.installed) and not found.missing.keys() & {
        *found.installed
    }
    for protocol in ("ftp", "sftp", "smb", "libarchive", "http", "webdav", "s3"):
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError:
            assert found.missing[protocol]
        else:
            assert protocol in found.installed


def test_what_a_missing_protocol_needs_is_said(monkeypatch):
    there = installed._found
    monkeypatch.setattr(installed, "_found", lambda package: package not in ("paramiko", "s3fs") and there(package))
    said = CliRunner().invoke(backends).output
    assert 'not installed: sftp, ssh: SFTPFileSystem requires "paramiko" to be installed' in " ".join(said.split())
    told = {each["scheme"]: each for each in json.loads(CliRunner().invoke(backends, ["--json"]).output)}["fsspec"]
    assert "s3fs" in told["missing"]["s3"] and "ftp" in told["installed"] and "sftp" not in told["installed"]


def test_without_fsspec_its_extra_is_said(monkeypatch):
    there = installed.find_spec
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "fsspec" else there(name))
    assert "needs fsspec: pip install 'fusebackend[fsspec]'" in CliRunner().invoke(backends).output
