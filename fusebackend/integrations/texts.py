"""`Texts`: changes of text files that depend on what is in them, without losing changes made meanwhile.

A change is computed from the file's text and made with one `edit` of that text, which fails where the text is gone:
then it is computed anew, from the new text.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable
from typing import Any

from fusebackend.base.errors import IS_DIRECTORY
from fusebackend.integrations.deepagents import adopt

ABSENT, NO_TEXT = "absent", "no text"
"""Why there is no text at a path. Else it is a directory, `IS_DIRECTORY`, or what the backend says."""

WORDS = {ABSENT: "there is no such file", IS_DIRECTORY: "it is a directory", NO_TEXT: "it is no text in UTF-8"}

TURNS = 16
"""Changes of different files at once by one `Texts`. Those of one file would only have each other begin anew."""


class NoText(Exception):
    """There is no text at a path. Attribute `reason`: `ABSENT`, `IS_DIRECTORY`, `NO_TEXT`, or the backend's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(WORDS.get(reason, reason))
        self.reason = reason


class NotChanged(Exception):
    """The backend refuses a change; the text says why."""


class Texts:
    """The text files of a backend.

    Args:
        backend: any backend, in any dialect.
        root: a directory that is there, whether the backend lists it or not.

    Attributes:
        files: the backend, as `adopt` gives it.
        root: the directory's normalised path.

    Raises:
        TypeError: `backend` is no backend.
    """

    def __init__(self, backend: Any, root: str) -> None:
        self.files = adopt(backend)
        self.root = posixpath.normpath("/" + root.strip("/"))
        self._turns = [threading.Lock() for _ in range(TURNS)]

    def kind(self, path: str) -> str | None:
        """`"directory"`, `"file"` or None. The directory above is asked: not every backend refuses an absent one."""
        if path == self.root:
            return "directory"
        for entry in self.files.ls(posixpath.dirname(path)).entries or []:
            if entry["path"].rstrip("/") == path:
                return "directory" if entry.get("is_dir") else "file"
        return None

    def read(self, path: str) -> str:
        """Return the text. Raises `NoText`."""
        answer = self.files.download_files([path])[0]
        if answer.content is None or answer.error is not None:
            kind = self.kind(path)
            if kind is None:
                raise NoText(ABSENT)
            raise NoText(IS_DIRECTORY if kind == "directory" else answer.error or ABSENT)
        try:
            return answer.content.decode()
        except UnicodeDecodeError:
            raise NoText(NO_TEXT) from None

    def change(self, path: str, change: Callable[[str], tuple[str, str]]) -> str:
        """Replace a part of a text, and return the text that it was replaced in.

        Two processes that change the same *empty* file at once are told that both did; one change is there.

        Args:
            path: of the file.
            change: what to replace in the text, `(old, new)`; `old` is there once. Called again when the file is
                another by the time of the edit. What it raises is raised.

        Raises:
            NoText: there is no text at the path.
            NotChanged: the backend refuses, in its words.
        """
        with self._turns[hash(path) % TURNS]:
            refused = None
            while True:
                text = self.read(path)
                old, new = change(text)
                if old == new:
                    return text
                if old:
                    error = self.files.edit(path, old, new).error
                else:
                    error = self.files.upload_files([(path, new.encode())])[0].error
                if error is None:
                    return text
                if refused == text:  # nobody else has changed it meanwhile: the backend does not take this change
                    raise NotChanged(error)
                refused = text
