"""Requests for approvals, as tests wait for and find them."""

from __future__ import annotations

from eventually import eventually

from fusebackend import Client
from fusebackend.protocol import ApprovalInfo

LIMIT_S = 60


def waiting(files: Client) -> list[ApprovalInfo]:
    return [each for each in files.approvals() if each.state == "pending"]


def asked(error: str | None, files: Client) -> int:
    """Return the number of the only request that waits, which an error names."""
    (found,) = waiting(files)
    assert error is not None and f"it is request {found.number};" in error and "\n" not in error, error
    return found.number


def one(files: Client) -> ApprovalInfo:
    """Wait for the only request that waits, and return it."""
    eventually(lambda: waiting(files), LIMIT_S, "nothing was asked for")
    (only,) = waiting(files)
    return only


def text_of(files: Client, path: str) -> str | None:
    (answer,) = files.download_files([path])
    return None if answer.content is None else answer.content.decode()
