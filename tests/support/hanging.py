"""A backend that never answers, for `python:hanging:backend` URLs."""

from __future__ import annotations

import threading
from typing import Any

from fusebackend.protocol import BackendProtocol


class HangingBackend(BackendProtocol):
    def ls(self, path: str) -> Any:
        threading.Event().wait()

    def download_files(self, paths: list[str]) -> Any:
        threading.Event().wait()

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        threading.Event().wait()


def backend() -> HangingBackend:
    return HangingBackend()
