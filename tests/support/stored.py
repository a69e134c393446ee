"""What a mount stores in a backend of whole files: over known bytes only, or several new files together."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import closing

from fusebackend.base.errors import code_of
from fusebackend.protocol.remote import Stamp
from fusebackend.remote.agent_remote import FilesRemote
from fusebackend.remote.agent_verbs import FileVerbs, checked
from fusebackend.remote.buffer import Buffer

STAMP = Stamp(0o100644, 0, 0, 0, 0)


def put_if(backend: FileVerbs, path: str, data: bytes, digest: bytes | None) -> str | None:
    """Put a file over the one with a digest, or a new one. Returns the code of the error; `conflict` for ESTALE."""
    with closing(Buffer.of([data])) as buffer:
        remote = FilesRemote(backend, ttl_s=0)
        return _code(lambda: remote.put(path[1:], buffer, STAMP, over=digest, create=digest is None))


def put_new(backend: FileVerbs, files: Sequence[tuple[str, bytes]]) -> str | None:
    """Put new files together. Returns as `put_if`."""
    return _code(lambda: backend._put_new([(checked(path), data) for path, data in files]))


def _code(work: Callable[[], object]) -> str | None:
    try:
        work()
    except OSError as error:
        return "conflict" if error.errno in (errno.ESTALE, errno.EEXIST) else code_of(error)
    return None
