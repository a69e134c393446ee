"""A server with both faces: it mounts, and answers verbs of the agent face given as JSON lines on standard input.

    python two_faces_server.py MOUNTPOINT DEFAULT_URL [PREFIX=URL…]

A line is `[verb, argument…]`; the answer is the record as an object, or `{"raised": text}`. Bytes are latin-1 strings.
`["behind", method, argument…]` calls a method of the default backend itself, behind the back of the mount.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from typing import Any

import fusebackend
from fusebackend.backends import CompositeBackend
from fusebackend.urls.opening import open_backend

DEADLINE_S = 1.0


def main(mountpoint: str, default: str, *routes: str) -> None:
    logging.basicConfig(level=logging.INFO)
    opened = [open_backend(default)]
    by_prefix = {}
    for route in routes:
        prefix, _, url = route.partition("=")
        by_prefix[prefix] = open_backend(url)
        opened.append(by_prefix[prefix])
    backend = CompositeBackend(opened[0], by_prefix) if by_prefix else opened[0]
    others = ["allow_other"] if os.geteuid() == 0 else []
    with fusebackend.mount(backend, mountpoint, deadline_s=DEADLINE_S, options=others) as mounted:
        print("ready", flush=True)
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            face = opened[0] if verb == "behind" else mounted
            if verb == "behind":
                verb, *arguments = arguments
            print(json.dumps(answer(face, verb, arguments)), flush=True)
    for one in opened:
        if hasattr(one, "close"):
            one.close()


def answer(backend: Any, verb: str, arguments: list[Any]) -> Any:
    if verb == "upload_files":
        arguments = [[(path, content.encode("latin-1")) for path, content in arguments[0]]]
    try:
        result = getattr(backend, verb)(*arguments)
    except Exception as error:  # the test gets every exception as an answer
        return {"raised": repr(error)}
    if isinstance(result, list):
        return [plain(one) for one in result]
    return plain(result) if dataclasses.is_dataclass(result) else None


def plain(record: Any) -> Any:
    fields = dataclasses.asdict(record)
    if isinstance(fields.get("content"), bytes):
        fields["content"] = fields["content"].decode("latin-1")
    return fields


if __name__ == "__main__":
    main(*sys.argv[1:])
