"""`DockerBackend`: the files of a container, and its shell.

    DockerBackend("python:3.11-slim", timeout=120, max_output_bytes=100_000)      its own container, from an image
    DockerBackend(container="box")                                                one that runs already
    docker:IMAGE_OR_CONTAINER?timeout=…&max_output_bytes=…&root=…&network=…&on_exists=…

Files are in the container, so that its commands see them and the verbs see theirs. Its own container is started at the
first call, and removed with its files by `close`, at the end of the process, or, after a kill, by the next process that
opens a `docker:` backend on this machine. A container that runs already is never stopped or removed, and any number of
servers may share it.

Commands and file verbs are each an `exec` of the engine (`docker_exec.py`), some seventy milliseconds, and several run
at a time where they are asked for at the same time. Large files come and go by an `exec`, too, not by the engine's
archives, which do not see what is mounted in the container. When a container is gone, stopped or paused, or the engine
is, a verb says so in one line, and the next one tries again.

The image needs `sh` and the usual tools, GNU's or busybox's, see `BaseSandbox`, and their dd.
"""

from __future__ import annotations

import contextlib
import errno
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from fusebackend.backends.sandbox import docker_exec
from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.backends.sandbox.docker_container import DockerContainer
from fusebackend.backends.sandbox.docker_exec import connect, engine_errors
from fusebackend.backends.sandbox.scripts import Script, failure, status_of
from fusebackend.base import budget, paths
from fusebackend.linux.command import OnOutput, nothing_to_run, require_positive
from fusebackend.protocol import ExecuteResponse, OnExists
from fusebackend.protocol.scheme import COMMANDS, ON_EXISTS, Parameter, Scheme, Url, UrlError

IMAGE = "python:3.11-slim"
"""The seeds' default."""


def _root(value: str) -> str:
    try:
        return paths.normalise(value)
    except paths.PathError:
        raise ValueError("must be the path of a directory") from None


class DockerBackend(BaseSandbox):
    """See the module's docstring.

    Args:
        image: the image of its own container; it is pulled where it is not there.
        timeout: seconds that a command may take by default.
        max_output_bytes: output beyond this is dropped, and the answer says `truncated`.
        container: name or id of a container that runs, instead of an image.
        root: the directory of the container that is `/` for the file verbs, and where commands begin.
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).
        options: for the SDK's `containers.create`, such as `{"mem_limit": "1g", "network_mode": "none"}`.
        base_url: where the engine is; None: as the environment says.

    Raises:
        ValueError: `timeout` not above 0, `max_output_bytes` below 0, or both an image and a container.
    """

    schemes: ClassVar = {
        "docker": Scheme(
            "docker:IMAGE_OR_CONTAINER",
            "the files of a container, where agents may run commands; one from an image is gone when the server ends",
            lambda url: open_docker(url),
            parameters={
                **COMMANDS,
                "network": Parameter(str, "the container's network, as of 'docker run --network'"),
                **ON_EXISTS,
                "root": Parameter(_root, "the directory of the container that is mounted"),
            },
            execute=True,
        )
    }

    inline_bytes = 64 << 10
    answer_bytes = 1 << 20

    def __init__(
        self,
        image: str | None = None,
        timeout: float = 120.0,
        max_output_bytes: int = 100_000,
        *,
        container: str | None = None,
        root: str = "/",
        on_exists: OnExists = "error",
        options: Mapping[str, Any] | None = None,
        base_url: str | None = None,
    ) -> None:
        require_positive(timeout, max_output_bytes)
        if image is not None and container is not None:
            raise ValueError("give an image or a container, not both")
        super().__init__(root=root, on_exists=on_exists)
        self.timeout = timeout
        self.max_output_bytes = max_output_bytes
        self.container = DockerContainer(
            None if container is not None else image or IMAGE, container, str(self.root), options or {}, base_url
        )
        self._id = f"docker-{uuid.uuid4().hex[:8]}"
        self._finalizer = weakref.finalize(self, self.container.close)  # also at the end of the process

    def _where(self) -> str:
        name = self.container.name if self.container.name is not None else f"image {self.container.image}"
        return name if str(self.root) == "/" else f"{name}, root {self.root}"

    @property
    def id(self) -> str:
        return self._id

    @property
    def durable(self) -> bool:
        """True if the files outlive this process."""
        return not self.container.is_ours

    def check(self) -> None:
        """Check that there is an engine, and the container or image. OSError, in one line."""
        self.container.check()
        if not self.container.is_ours:
            status, _ = status_of(self.ask(Script().call("fb_ls", str(self.root)), self.script_timeout_s, looks=True))
            if status != "ok":
                words = failure(status).strerror
                raise OSError(errno.ENXIO, f"Directory '{self.root}' of container '{self.container.name}': {words}")

    def close(self) -> None:
        """Let go of the container, and remove it if it was started here. Twice is once."""
        self._finalizer()

    # -- commands ----------------------------------------------------------------------------------------------

    def execute(
        self,
        command: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> ExecuteResponse:
        """Run `command` with `sh -c` in `root`, with no input and with the container's environment.

        Processes that it leaves in the background go on, unless it ran out of time, was stopped, or `aexecute` was
        cancelled: then all that is in its session is killed. Output is stdout, then the lines of stderr prefixed
        `[stderr] `.

        Args:
            command: for `sh -c`.
            timeout: seconds; the backend's own when None.
            on_output: called with the kept output, as it comes. It may raise to end the command.
            stopped: asked now and then; the command is ended when it says so, and the exit code is 130.

        Raises:
            ValueError: `timeout` is not above 0.
        """
        seconds = self.timeout if timeout is None else timeout
        require_positive(seconds)
        refusal = nothing_to_run(command)
        if refusal is not None:
            return refusal
        caller = budget.current()
        raised: list[BaseException] = []

        def tell(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
            try:
                assert on_output is not None
                on_output(stream, piece)
            except BaseException as error:
                raised.append(error)
                raise

        try:
            if "\0" in command:
                raise OSError(errno.EINVAL, "embedded null byte")
            return docker_exec.run(
                self.container.api,
                self.container.running(),
                command,
                str(self.root),
                seconds,
                self.max_output_bytes,
                on_output=on_output and tell,
                stopped=lambda: caller.cancelled or (stopped is not None and stopped()),
            )
        except UnicodeEncodeError as error:
            return ExecuteResponse(output=f"Error executing command: {error}", exit_code=1)
        except OSError as error:
            if raised:  # no failure of the container's
                raise raised[0] from None
            told = self.container.lost(error)
            return ExecuteResponse(output=f"Error executing command: {told.strerror or told}", exit_code=1)

    # -- transports --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple[Any, str]]:
        """The SDK's client, and the container. An error inside says if that is gone."""
        try:
            yield self.container.api, self.container.running()
        except OSError as error:
            raise self.container.lost(error) from error

    def ask(self, script: Script, timeout_s: float, *, looks: bool = False, cut: bool = False) -> bytes:
        deadline = time.monotonic() + timeout_s
        with self._running() as (api, container):
            answer, whole = docker_exec.ask(api, container, script, deadline)
            if not whole and not cut:
                raise OSError(errno.ETIMEDOUT, "The container does not answer")
            return answer

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        with self._running() as (api, container):
            docker_exec.send_to(api, container, files)

    def fetch(self, path: str) -> bytes:
        with self._running() as (api, container):
            return docker_exec.fetch_from(api, container, path)


# -- opening ---------------------------------------------------------------------------------------------------
#
# `docker:` URLs: a container of that name if there is one, and else an image.


def open_docker(url: Url) -> DockerBackend:
    """The backend of a URL. Errors are raised now, in one line: at the first call, later, a user would not see them.

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
        with engine_errors():
            client.api.inspect_container(name)
    except FileNotFoundError:
        return False
    finally:
        client.close()
    return True
