"""`Rooted`: one directory of a backend as a backend of its own, for suites that need a root."""

from __future__ import annotations

import dataclasses
from typing import Any

from fusebackend.base import paths
from fusebackend.base.paths import PathError
from fusebackend.protocol import AGENT_VERBS, SEED_VERBS, BackendProtocol

WRITING = frozenset({"write", "edit", "delete", "move", "upload_files"})
PATHS = {
    "ls": (0,), "read": (0,), "write": (0,), "edit": (0,), "grep": (1,), "glob": (1,), "delete": (0,), "move": (0, 1),
    "ls_info": (0,), "grep_raw": (1,), "glob_info": (1,),
}  # fmt: skip
"""The positions of a verb's arguments that are paths."""

KEYWORDS = ("path", "file_path", "source", "destination")


class Rooted(BackendProtocol):
    """`directory` as a root: `reader` runs the verbs that look, `writer` those that change."""

    def __init__(self, directory: str, writer: Any, reader: Any) -> None:
        self.directory = directory
        self.writer = writer
        self.reader = reader

    def inner(self, path: Any) -> Any:
        try:
            return paths.join(self.directory, paths.normalise(path)[1:]) if path is not None else self.directory
        except PathError:
            return path  # the inner backend refuses it

    def outer(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(self.directory + "/", "/").replace(self.directory, "/")
        if isinstance(value, list):
            return [self.outer(item) for item in value]
        if isinstance(value, dict):
            return {key: self.outer(item) if key == "path" else item for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = {"path", "error", "entries", "matches"} & {field.name for field in dataclasses.fields(value)}
            return dataclasses.replace(value, **{name: self.outer(getattr(value, name)) for name in names})
        return value


def _verb(name: str) -> Any:
    def verb(self: Rooted, *arguments: Any, **keywords: Any) -> Any:
        given = list(arguments)
        if name in ("upload_files", "download_files"):
            asked = given[0]
            items = (
                [(self.inner(path), data) for path, data in asked] if name == "upload_files" else map(self.inner, asked)
            )
            answers = getattr(self.writer if name in WRITING else self.reader, name)(list(items))
            wanted = [item[0] for item in asked] if name == "upload_files" else asked
            return [dataclasses.replace(one, path=path) for one, path in zip(answers, wanted, strict=True)]
        for place in PATHS[name]:
            if place < len(given):
                given[place] = self.inner(given[place])
        keywords = {key: self.inner(value) if key in KEYWORDS else value for key, value in keywords.items()}
        if name in ("grep", "glob", "grep_raw", "glob_info") and len(given) < 2 and "path" not in keywords:
            keywords["path"] = self.directory
        return self.outer(getattr(self.writer if name in WRITING else self.reader, name)(*given, **keywords))

    return verb


for _name in (*AGENT_VERBS, *SEED_VERBS):
    setattr(Rooted, _name, _verb(_name))
