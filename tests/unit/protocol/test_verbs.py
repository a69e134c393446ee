"""The table of verbs: records and sentences of errors, and the methods that are made from it."""

from __future__ import annotations

import errno
import inspect

from for_each import for_each

from fusebackend.backends.memory import InMemoryBackend
from fusebackend.base.errors import oserror
from fusebackend.base.paths import PathError
from fusebackend.composite.backend import CompositeBackend
from fusebackend.control.client.client import Client
from fusebackend.protocol import AGENT_VERBS, BackendProtocol, verbs
from fusebackend.server.mounted import MountedBackend


def test_sentences():
    for verb, error, given, text in [
        (verbs.LS, oserror(errno.ENOENT), ("/x",), "Path '/x': path_not_found"),
        (verbs.LS, oserror(errno.EACCES), ("/x",), "Path '/x': permission_denied"),
        (verbs.READ, oserror(errno.EISDIR), ("/{x}",), "File '/{x}': Is a directory"),
        (verbs.EDIT, oserror(errno.ENOENT), ("/x",), "Error: File '/x' not found"),
        (verbs.WRITE, OSError(errno.EIO, "the disk is gone"), ("/x",), "Error writing file '/x': the disk is gone"),
        (verbs.MOVE, oserror(errno.EEXIST), ("/a", "/b"), "Cannot move to /b because it already exists."),
        (verbs.GREP, PathError("Path is empty"), ("",), "Path is empty"),
    ]:
        assert verb.refused(error, *given) == verb.record(error=text)
    decoding = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")
    assert "is not UTF-8 text" in (verbs.EDIT.refused(decoding, "/x").error or "")


def test_a_batch_has_codes_and_paths():
    refused = verbs.UPLOAD_FILES.refused(oserror(errno.EROFS), "/x")
    assert (refused.path, refused.error) == ("/x", "permission_denied")
    assert verbs.DOWNLOAD_FILES.refused(PathError("no"), "/x").error == "invalid_path"
    told = verbs.DOWNLOAD_FILES.refused(OSError(errno.EIO, "the engine is gone"), "/x").error
    assert told == "the engine is gone", "an errno that says nothing"


@for_each("kind", [CompositeBackend, MountedBackend, Client, InMemoryBackend])
@for_each("name", AGENT_VERBS)
def test_every_class_shows_the_parameters_of_its_verbs(kind, name):
    protocol = inspect.signature(getattr(BackendProtocol, name))
    assert inspect.signature(getattr(kind, name)).parameters == protocol.parameters
    assert list(inspect.signature(getattr(kind, f"a{name}")).parameters) == list(protocol.parameters)
    assert inspect.iscoroutinefunction(getattr(kind, f"a{name}"))
