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
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from fusebackend.backends.sandbox import docker_exec
from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.backends.sandbox.docker_exec import ask, connect, engine_errors
from fusebackend.backends.sandbox.scripts import Script, failure, status_of
from fusebackend.base import budget, paths
from fusebackend.linux import proc
from fusebackend.linux.command import OnOutput, nothing_to_run, require_positive
from fusebackend.linux.runtime_directory import identity, pid_namespace
from fusebackend.protocol import ExecuteResponse, OnExists
from fusebackend.protocol.scheme import COMMANDS, ON_EXISTS, Parameter, Scheme, Url, UrlError

# -- container ---------------------------------------------------------------------------------------------------
#
# `DockerContainer`: the container of a `DockerBackend`, its own or a foreign one.
#
# Its own is started when it is needed: it is removed with everything in it by `close`, at the end of the process, and,
# after a kill, by the next process that starts or opens a container on this machine (`remove_left`). It has an init
# that reaps orphans, and is removed when it stops (`--rm`). A foreign container is never started, stopped or removed.
#
# A mount may bind its routes into its own container (`hold`, `bind`). Bind mounts are made when the container starts,
# so it starts only when the mount answers.


log = logging.getLogger(__name__)

KEEP_RUNNING = ["-c", "while :; do sleep 86400; done"]
"""The command of the container: nothing, for as long as it is there. Its processes come by `exec`."""


NOTICE_S = 0.5
"""How long the engine may take to notice that a container has ended."""

HOLD_S = 60.0
"""How long a start may be held up by a mount that does not answer yet."""

START_S = 30.0
"""How long the first program in a container may take."""


class DockerContainer:
    """See the module's docstring. Safe in threads.

    Args:
        image: the image of the container, pulled if it is not there; or
        container: name or id of a container that runs.
        root: a directory that is made in a container that is started here.
        options: passed on to the SDK's `containers.create`, such as `mem_limit` or `network_mode`.
        base_url: where the engine is; None: as the environment says.
    """

    def __init__(
        self, image: str | None, container: str | None, root: str, options: Mapping[str, Any], base_url: str | None
    ) -> None:
        self.image = image
        self.name = container
        self._root = root
        self._options = dict(options)
        self._base_url = base_url
        self._lock = threading.RLock()
        self._client: Any = None
        self.id: str | None = None
        """The container's, once there is one."""
        self._pid = os.getpid()
        self._closed = False
        self._may_start = threading.Event()
        self._may_start.set()
        self._bound: dict[str, str] = {}

    @property
    def is_ours(self) -> bool:
        return self.image is not None

    @property
    def api(self) -> Any:
        """The SDK's low-level client. OSError where there is no engine."""
        return self._connected().api

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "The backend is closed")
            if self._client is None:
                self._client = connect(self._base_url)
                remove_left(self._client)
            return self._client

    def check(self) -> None:
        """Check that there is an engine, and that it has the container, or the image, which is pulled if not.
        OSError."""
        client = self._connected()
        if self.name is not None:
            self._require_running(client)
        else:
            self._require_image(client)

    def running(self) -> str:
        """The id of the container, which is started if there is none. OSError."""
        with self._lock:
            if self.id is None:
                client = self._connected()
                self.id = self._require_running(client) if self.name is not None else self._start(client)
                if self.is_ours:
                    ask(client.api, self.id, Script().call("mkdir -p", self._root), time.monotonic() + START_S)
            return self.id

    def hold(self) -> bool:
        """Start no container until `bind` is called; False if it runs already, or is a foreign one."""
        with self._lock:
            if not self.is_ours or self.id is not None:
                return False
            self._may_start.clear()
            return True

    def bind(self, directories: Mapping[str, str]) -> None:
        """Directories of this machine by the paths that they are to have in a container that is started from now on."""
        self._bound = dict(directories)  # not under the lock: a start that is held up has it
        self._may_start.set()

    def unbind(self) -> None:
        """Remove the container that has something bound, with its files; the next call starts one without."""
        with self._lock:
            bound, self._bound = self._bound, {}
            self._may_start.set()
            container = self.id
            if bound and container is not None:
                self.id = None
                _remove(self._client, container)

    def lost(self, error: OSError) -> OSError:
        """Return the error to raise instead of one of the container's: that it is gone, stopped or paused, if it is.

        After that a call begins anew: with another container where it was ours, and else with the same, if it runs.
        """
        with self._lock:
            if self.id is None:
                return error
            container = self.id
            try:
                state = self._state(container, settled=error.errno != errno.ECONNRESET)
            except OSError as unreachable:
                self.id = None
                return unreachable
            shown = self.name or container[:12]
            if state.get("Paused"):
                return OSError(errno.EBUSY, f"Container '{shown}' is paused")
            if state.get("Running"):
                return error
            self.id = None
        if not self.is_ours:
            return OSError(errno.ENXIO, f"Container '{shown}' does not run any more")
        _remove(self._client, container)
        return OSError(errno.ENXIO, f"Container '{shown}' is gone, and its files with it; the next call starts another")

    def _state(self, container: str, *, settled: bool) -> dict[str, Any]:
        """Return the engine's description of a container, empty if it is unknown. When its shell has just ended, it may
        be a moment before the engine notices the end of the container, too (not `settled`)."""
        deadline = time.monotonic() + (0 if settled else NOTICE_S)
        while True:
            try:
                with engine_errors():
                    state: dict[str, Any] = self._connected().api.inspect_container(container)["State"]
            except FileNotFoundError:
                return {}
            if not state.get("Running") or time.monotonic() >= deadline:
                return state
            time.sleep(NOTICE_S / 10)

    def close(self) -> None:
        """Let go of it, and remove it where it is ours. Twice is once; a child of this process does nothing."""
        with self._lock:
            if self._closed:
                return
            container, self.id = self.id, None
            if container is not None and self.is_ours and os.getpid() == self._pid:
                _remove(self._client, container)
            self._closed = True
            client, self._client = self._client, None
            if client is not None:
                client.close()

    # -- starting ----------------------------------------------------------------------------------------------

    def _require_running(self, client: Any) -> str:
        try:
            with engine_errors():
                found = client.api.inspect_container(self.name)
        except FileNotFoundError:
            raise OSError(errno.ENXIO, f"There is no container '{self.name}'") from None
        if not found["State"]["Running"]:
            raise OSError(
                errno.ENXIO, f"Container '{self.name}' does not run; start it with 'docker start {self.name}'"
            )
        return str(found["Id"])

    def _require_image(self, client: Any) -> None:
        try:
            with engine_errors():
                client.images.get(self.image)
            return
        except FileNotFoundError:
            log.info("pulling the image %s", self.image)
        try:
            with engine_errors():
                client.images.pull(self.image)
        except OSError as error:
            text = f"There is no image '{self.image}' here, and it can't be pulled: {error.strerror}"
            raise OSError(errno.ENXIO, text) from None

    def _start(self, client: Any) -> str:
        if not self._may_start.wait(HOLD_S):
            raise OSError(errno.EAGAIN, "The mount whose files the container is to see does not answer yet")
        self._require_image(client)
        options = {
            "entrypoint": "sh",
            "command": KEEP_RUNNING,
            "labels": labels(),
            "init": True,
            "auto_remove": True,
            "detach": True,
            **self._options,
        }
        if self._bound:
            options["mounts"] = [*options.get("mounts", []), *map(_bind_of, self._bound.items())]
        with engine_errors():
            container = client.containers.create(self.image, **options)
            try:
                container.start()
            except BaseException:
                with contextlib.suppress(Exception):
                    container.remove(force=True)
                raise
        log.info("started container %s from %s", container.id[:12], self.image)
        return str(container.id)


def _bind_of(item: tuple[str, str]) -> Any:
    """Private: nothing that either side mounts later shows on the other."""
    from docker.types import Mount  # type: ignore[import-untyped]

    target, source = item
    return Mount(target, source, type="bind", propagation="rprivate")


def remove_left(client: Any) -> None:
    """Remove the containers that servers of this machine have left when they were killed."""
    try:
        with engine_errors():
            found = client.api.containers(all=True, filters={"label": OWNER})
    except OSError as error:
        log.warning("containers of killed servers could not be looked for: %s", error.strerror)
        return
    for container in found:
        if is_left(container.get("Labels") or {}, running=container.get("State") == "running"):
            log.info("removing container %s, whose server is gone", container["Id"][:12])
            _remove(client, container["Id"])


def _remove(client: Any, container: str) -> None:
    """Remove a container with its files, unless it is gone, or another server is removing it."""
    try:
        with engine_errors():
            client.api.remove_container(container, force=True, v=True)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EBUSY):
            log.warning("container %s could not be removed: %s", container[:12], error.strerror)


# -- owners ---------------------------------------------------------------------------------------------------

OWNER = "fusebackend.owner"
BOOT = "fusebackend.boot"


def labels() -> dict[str, str]:
    """Return the labels of this process's containers: the boot of its machine, and the identity of the process."""
    return {OWNER: str(identity(os.getpid())), BOOT: proc.boot_id()}


def is_left(found: Mapping[str, str], *, running: bool) -> bool:
    """Return True if the owner of a container with these labels has ended.

    That can only be seen of the processes that this one can see. A label of another boot may be that of this machine
    before it was started again, or of another machine with the same engine: such a container counts as left if it does
    not run.
    """
    words = found.get(OWNER, "").split("-")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return False
    if found.get(BOOT) != proc.boot_id() or words[0] != pid_namespace():
        return not running
    return identity(int(words[1])) != "-".join(words)


# -- backend -----------------------------------------------------------------------------------------------------


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
