"""`DockerContainer`: the container of a `DockerBackend`, its own or a foreign one.

Its own is started when it is needed: it is removed with everything in it by `close`, at the end of the process, and,
after a kill, by the next process that starts or opens a container on this machine (`remove_left`). It has an init that
reaps orphans, and is removed when it stops (`--rm`). A foreign container is never started, stopped or removed.

A mount may bind its routes into its own container (`hold`, `bind`). Bind mounts are made when the container starts, so
it starts only when the mount answers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from fusebackend.backends.sandbox.docker_exec import ask, connect, engine_errors
from fusebackend.backends.sandbox.scripts import Script
from fusebackend.linux import proc
from fusebackend.linux.runtime_directory import identity, pid_namespace

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
            return self._client

    def check(self) -> None:
        """Check that there is an engine, and that it has the container, or the image, which is pulled if not.
        OSError."""
        client = self._connected()
        remove_left(client)
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
                self._remove(container)

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
        self._remove(container)
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
                self._remove(container)
            self._closed = True
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _remove(self, container: str) -> None:
        try:
            with engine_errors():
                self._client.api.remove_container(container, force=True, v=True)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:  # it is being removed already
                log.warning("container %s could not be removed: %s", container[:12], error.strerror)

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
        remove_left(client)
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
            try:
                with engine_errors():
                    client.api.remove_container(container["Id"], force=True, v=True)
            except OSError as error:
                log.info("container %s: %s", container["Id"][:12], error.strerror)


# -- files -----------------------------------------------------------------------------------------------------
#
# Many files go into a container by one archive. The engine sees the container's layers and volumes, but no file system
# that is mounted only inside of it (a tmpfs), so after `put_files` the file must be checked.

FILE_MODE = 0o644

MEMORY_BYTES = 8 << 20
"""A larger archive is put together on the disk."""


def put_files(api: Any, container: str, files: Iterable[tuple[str, bytes]], owner: tuple[int, int]) -> None:
    """Put files at absolute paths in existing directories, one request for each directory. OSError."""
    split = sorted((*path.rpartition("/")[::2], data) for path, data in files)
    for directory, group in groupby(split, itemgetter(0)):
        with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
                for _, name, data in group:
                    archive.addfile(_member(name, len(data), owner), io.BytesIO(data))
            file.seek(0)
            with engine_errors():
                api.put_archive(container, directory or "/", file)


def _member(name: str, size: int, owner: tuple[int, int]) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = FILE_MODE
    member.uid, member.gid = owner
    member.mtime = int(time.time())
    return member


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
