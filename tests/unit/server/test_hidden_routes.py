"""A route that a view hides: each verb says of its paths what it says of hidden ones where there is no route."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from live import live

from fusebackend.backends import InMemoryBackend
from fusebackend.testing.each import each

HIDDEN = [{"operations": ["read", "write"], "paths": ["/route/**", "/way/route/**", "/plain/**"], "mode": "hide"}]
HIDDEN[0]["paths"] += ["/route", "/way/route", "/plain", "/way/plain", "/way/plain/**"]

Verb = Callable[[Any, str], Any]
VERBS: dict[str, Verb] = {
    "append": lambda files, path: files.append(path, [b"x"]),
    "make_directory": lambda files, path: files.make_directory(path),
    "make_directory, with parents": lambda files, path: files.make_directory(path, parents=True),
    "remove_directory": lambda files, path: files.remove_directory(path),
    "write": lambda files, path: files.write(path, "x").error,
    "edit": lambda files, path: files.edit(path, "x", "y").error,
    "read": lambda files, path: files.read(path).error,
    "stat": lambda files, path: files.stat(path).error,
    "ls": lambda files, path: files.ls(path).error,
    "delete": lambda files, path: files.delete(path).error,
    "upload_files": lambda files, path: files.upload_files([(path, b"x")])[0].error,
}


def said(verb: Verb, files: Any, path: str) -> object:
    with contextlib.suppress(OSError):
        return str(verb(files, path)).replace(path, "PATH")
    try:
        verb(files, path)
    except OSError as error:
        return error.errno
    raise AssertionError("once an error, once none")


def test_no_verb_tells_that_there_is_one(tmp_path: Path) -> None:
    routes = {"/route/": InMemoryBackend(), "/way/route/": InMemoryBackend()}
    with live(tmp_path, InMemoryBackend(), routes, views={"agent": HIDDEN}) as server:
        server.connect().upload_files([("/way/file", b"x"), ("/route/file", b"x"), ("/way/route/file", b"x")])
        files = server.connect(view="agent")
        for case in each(VERBS):
            with case as verb:
                for above in ("", "/way"):
                    for below in ("", "/file", "/new", "/new/file"):
                        there, not_there = f"{above}/route{below}", f"{above}/plain{below}"
                        assert said(verb, files, there) == said(verb, files, not_there), there
