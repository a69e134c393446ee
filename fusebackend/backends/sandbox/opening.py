"""`docker:` URLs: a container of that name if there is one, and else an image."""

from __future__ import annotations

from typing import Any

from fusebackend.backends.sandbox.docker import DockerBackend
from fusebackend.backends.sandbox.engine import connect, speaking
from fusebackend.protocol.scheme import Url, UrlError


def open_docker(url: Url) -> DockerBackend:
    """The backend of a URL. Whatever can't be used is said now, and in one line: by the first call nobody would see it.

    Raises:
        UrlError: no SDK, no engine, a container that does not run, an image that can't be had.
    """
    parameters: dict[str, Any] = dict(url.parameters)
    network = parameters.pop("network", None)
    options = {"network_mode": network} if network is not None else {}
    backend = None
    try:
        if _is_container(url.rest):
            if options:
                raise UrlError(f"'{url.masked}': container '{url.rest}' runs already and has its network")
            backend = DockerBackend(container=url.rest, **parameters)
        else:
            backend = DockerBackend(url.rest, options=options, **parameters)
        backend.check()
    except (OSError, ValueError) as error:
        if backend is not None:
            backend.close()
        if isinstance(error, UrlError):
            raise
        words = error.strerror if isinstance(error, OSError) else None
        raise UrlError(f"'{url.masked}': {words or error}") from error
    return backend


def _is_container(name: str) -> bool:
    client = connect()
    try:
        with speaking():
            client.api.inspect_container(name)
    except FileNotFoundError:
        return False
    finally:
        client.close()
    return True
