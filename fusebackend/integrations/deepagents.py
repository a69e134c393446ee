"""deepagents both ways: `export` makes one of their backends out of any of ours, `adopt` one of ours out of theirs.

    agent = create_deep_agent(model, backend=SqliteBackend("notes.db"))
    agent = create_deep_agent(model, backend=export(SqliteBackend("notes.db")))
    fusebackend.mount(adopt(theirs), "/mnt/agent")

`CompositeBackend`, `fusebackend.mount` and `python:` URLs call `adopt` by themselves, so theirs can be given to them as
they are. `create_deep_agent` takes every backend of ours as it is, a `Mount` and a `Client` too: their classes are
virtual subclasses of deepagents' (`protocol/registered.py`), and its tools ask what `export` makes of them, under the
rules of its `permissions=` (`exported.py`). `export` is for more: a route in a composite of theirs, a bare factory, or
an object that is no backend of ours.

Importing this module does not import deepagents; `export` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusebackend.composite.backend import CompositeBackend, adopted

if TYPE_CHECKING:
    from deepagents.backends.protocol import BackendProtocol


def export(backend: Any) -> BackendProtocol:
    """A backend of ours, or anything with an agent face, as an instance of deepagents' `BackendProtocol`.

    It has their result classes, `write` replaces, as theirs has since 0.7, and a failure is an error in a result, never
    an exception. `delete` is there if any part of the backend can delete, and it is a `SandboxBackendProtocol` if the
    backend can execute. The `a…` verbs run in threads, under asyncio and under trio.

    A factory (`lambda runtime: StoreBackend(runtime)`, a class, a composite with such in it), as the seeds give to
    `create_deep_agent`, is called anew for each verb, with the runtime of the graph that is running. It can't execute.

    Args:
        backend: also a `Mount`, a `Client`, a `CompositeBackend`. One of theirs is returned as it is.

    Raises:
        ImportError: deepagents is not installed.
        TypeError: this is no backend.
    """
    try:
        from fusebackend.integrations import exported
    except (ImportError, AttributeError) as error:  # an older one lacks names that `exported` takes from it
        raise ImportError(
            f"export needs deepagents 0.7 or later: pip install 'fusebackend[deepagents]' ({error})"
        ) from error
    from deepagents.backends.protocol import BackendProtocol

    if BackendProtocol in type(backend).__mro__:  # `isinstance` is True for ours as well
        made: BackendProtocol = backend
        return made
    return exported.exported(backend)


def adopt(backend: Any) -> CompositeBackend:
    """Return a foreign backend with both faces of ours; the verbs are a composite's.

    It may speak today's words or the seeds', synchronous or only asynchronous; bytes go through `upload_files` and
    `download_files`. A composite of theirs becomes one of ours, an exported backend is unwrapped. `fusebackend.mount`
    and `backends.volume_of` give the kernel face.

    Raises:
        TypeError: this is no backend, but perhaps a factory of one.
    """
    return adopted(backend, "adopt what it makes")
