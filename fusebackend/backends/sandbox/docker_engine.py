"""The Docker engine as `DockerBackend` speaks to it: the SDK imported when it is needed, its errors as `OSError`.

Every call of the SDK is made inside of `engine_errors()`, so each error is one line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

REQUEST_TIMEOUT_S = 60
"""For one request; a pull and an attached socket are not limited by it."""

POOLS = 256
"""The SDK keeps a pool of connections for each URL, 25 pools by default, and each command has URLs of its own. It
closes the least recently used pool, and a request under way over that one ends with an AttributeError (urllib3's
`_put_conn`): a hundred searches at once closed a pool in use."""


def connect(base_url: str | None = None) -> Any:
    """A client of the engine at `base_url`, or where the environment says (`DOCKER_HOST`).

    Raises:
        OSError: the SDK is missing, or no engine answers.
    """
    try:
        import docker  # type: ignore[import-untyped]
    except ImportError:
        # Not ENOENT: every file would seem to be missing.
        raise OSError(errno.ENOPKG, "The Docker SDK is not installed: pip install 'fusebackend[docker]'") from None
    where = base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    _require_socket(where)
    with engine_errors(where):
        named = docker.utils.kwargs_from_env() if base_url is None else {"base_url": base_url}
        client = docker.DockerClient(timeout=REQUEST_TIMEOUT_S, num_pools=POOLS, **named)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
    return client


def _require_socket(url: str) -> None:
    """Return True if a server listens at a Unix socket. The SDK would say it in four lines, and leave a socket open."""
    scheme, _, path = url.partition("://")
    if scheme != "unix":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(REQUEST_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError as error:
            words = f"There is no Docker engine at {url}: {error.strerror or error}"
            raise OSError(errno.ECONNREFUSED, words) from None


@contextlib.contextmanager
def engine_errors(where: str = "the Docker engine") -> Iterator[None]:
    """Turn errors of the SDK in the block into `OSError`: ENOENT for unknown objects, EBUSY for a conflict,
    ECONNREFUSED where there is no engine."""
    import docker.errors  # type: ignore[import-untyped]
    import requests.exceptions
    import urllib3.exceptions

    try:
        yield
    except docker.errors.NotFound as error:
        raise OSError(errno.ENOENT, _line(error.explanation)) from error
    except docker.errors.APIError as error:
        number = errno.EBUSY if error.status_code == 409 else errno.EIO
        raise OSError(number, _line(error.explanation or error)) from error
    except requests.exceptions.Timeout as error:
        raise OSError(errno.ETIMEDOUT, "The Docker engine does not answer") from error
    except docker.errors.DockerException as error:
        raise OSError(errno.ECONNREFUSED, f"There is no Docker engine at {where}: {_cause(error)}") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise OSError(errno.ECONNREFUSED, f"The Docker engine has gone away: {_cause(error)}") from error


def _line(message: object) -> str:
    return " ".join(str(message).split())


def _cause(error: BaseException) -> str:
    """The words of the system's error at the bottom of several libraries' errors."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        for argument in seen.args:
            if isinstance(argument, BaseException):
                seen = argument
                break
        else:
            seen = seen.__cause__ or seen.__context__
    return _line(error)
