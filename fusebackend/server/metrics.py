"""`Metrics`: what Prometheus can know of a mount, by prometheus-client.

What is counted anyway, `status` has, and `Metrics.collect` says it in Prometheus' words. Times need a clock around each
request and verb: `measure_kernel`, `measure_verbs` and `measured_verbs` put one there, and a mount without metrics has
none. Labels are kinds of requests, routes and errors, never paths of files, so that their number has a bound.
"""

from __future__ import annotations

import errno
import functools
import inspect
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fusebackend.base import paths
from fusebackend.base.extras import needed_by
from fusebackend.base.paths import ROOT, AgentPath, PathError
from fusebackend.base.shown import name_shown
from fusebackend.base.version import __version__
from fusebackend.config import MetricsOptions
from fusebackend.control.verbs import SocketVerb
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import SERVED
from fusebackend.vfs.inodes import route_index

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

    from fusebackend.control.server.server_connection import RunningCall
    from fusebackend.fuse.operations import Operations
    from fusebackend.server.mounted import MountedBackend
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.mounted_tree import FileSystem

Face = Literal["kernel", "verbs", "socket"]

BUCKETS_S = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""From a `getattr` of memory to the deadline of a route."""

FAILED = "failed"
"""The label `error` of a verb whose answer has one: its text is for people, and may name a file."""

BY_DIRECTORY = frozenset({"readdir", "fsyncdir", "releasedir"})
BY_HANDLE = BY_DIRECTORY | {"read", "write", "flush", "fsync", "release"}
"""Requests of the kernel whose first argument is the handle of a directory, or of a directory or file. `forget` and
`statfs` have neither a handle nor an inode there."""

REQUEST_SECONDS = "Time from a request or verb to its answer."
REQUEST_ERRORS = "Requests and verbs that were refused or failed, by the name of the errno."
KERNEL_BYTES = "Bytes of files that the kernel read and wrote here. What its page cache answers is not among them."
KERNEL_OPENS = "Opens of files, by whether the kernel may keep the pages that it has (hit) or drops them (miss)."
CACHE_LOOKUPS = (
    "Lookups of pieces of files in the memory of a volume: hit, or miss, which asks its file or its network."
)
FEED_DELAY_SECONDS = (
    "Time from the transaction of a change by another host until it was told of here, by the database's clock."
)


def opened(filesystem: FileSystem, status: Callable[[], dict[str, Any]], options: MetricsOptions) -> Metrics:
    """Return the metrics of a mount.

    Raises:
        MountError: ENOTSUP, prometheus-client is not installed.
    """
    try:
        with needed_by("metrics"):
            return Metrics(filesystem, status, options)
    except ModuleNotFoundError as error:
        raise MountError(errno.ENOTSUP, str(error)) from None


class _OfStatus:
    """Gives Prometheus' registry what `status` has of the mount."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        found: dict[str, Any] = {}
        for name, (text, labels, *where) in FAMILIES.items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            found[name] = kind(f"fusebackend_{name}", text, labels=labels)
            if where:
                found[name].add_metric((), functools.reduce(operator.getitem, where, status))
        for name, value, *labels in _samples(status):
            found[name].add_metric(labels, value)
        yield from found.values()


class Metrics:
    """See the module's docstring. All methods are thread-safe.

    Attributes:
        url: where Prometheus can ask; None while nobody listens.
    """

    def __init__(self, filesystem: FileSystem, status: Callable[[], dict[str, Any]], options: MetricsOptions) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self.url: str | None = None
        self._filesystem = filesystem
        self._tree = filesystem.tree
        self._options = options
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_OfStatus(status))
        ProcessCollector(registry=self._registry)
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        place = ("face", "operation", "route")
        self._seconds = histogram("fusebackend_request_seconds", REQUEST_SECONDS, place, buckets=BUCKETS_S)
        self._errors = counter("fusebackend_request_errors", REQUEST_ERRORS, (*place, "error"))
        self._bytes = counter("fusebackend_kernel_bytes", KERNEL_BYTES, ("direction", "route"))
        self._opens = counter("fusebackend_kernel_opens", KERNEL_OPENS, ("page_cache", "route"))
        self._lookups = counter("fusebackend_cache_lookups", CACHE_LOOKUPS, ("result", "route"))
        delays = "fusebackend_feed_delay_seconds"
        self._delays = histogram(delays, FEED_DELAY_SECONDS, ("route",), buckets=BUCKETS_S[5:])
        self._observers: dict[tuple[Face, str, str], Callable[[float], None]] = {}  # `labels` takes longer than this
        self._labels: dict[AgentPath, str] = {}

    def text(self) -> str:
        """Return everything in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    # -- the endpoint ------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Answer Prometheus, where the options name an address, until `close`.

        Raises:
            MountError: the address can't be had.
        """
        address = self._options.address
        if address is None:
            return
        host, port = address
        from prometheus_client import start_http_server

        try:
            self._server = start_http_server(port, host, self._registry)
        except OSError as error:
            why = f"the metrics can't listen on {_address(host, port)}: {error.strerror or error}"
            raise MountError(error.errno or errno.EIO, why) from None
        self.url = f"http://{_address(host, self._server[0].server_port)}/metrics"

    def close(self) -> None:
        """Answer no more. Twice is once."""
        server, self._server, self.url = self._server, None, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()

    # -- what is measured --------------------------------------------------------------------------------------

    def measure_kernel(self, operations: Operations) -> None:
        """Measure every request of the kernel, and the caches behind them. Before the mount."""
        operations.begin = self._begin
        for volume, routes in self._tree.volumes():
            if volume.features.change_feed and volume.features.shared:
                volume.observe_delays(self._delays.labels(self._label(routes[0].prefix)).observe)
            if volume.byte_cache is not None:
                counted = self._counted(volume.byte_cache.get, self._label(routes[0].prefix))
                setattr(volume.byte_cache, "get", counted)  # noqa: B010 - of this object alone, not of its class

    def _counted(self, get: Callable[..., object], label: str) -> Callable[..., object]:
        hit, miss = (self._lookups.labels(result, label).inc for result in ("hit", "miss"))

        def counted(*key: Any) -> object:
            found = get(*key)
            (miss if found is None else hit)()
            return found

        return counted

    def measured_verbs(self, verbs: Mapping[str, SocketVerb]) -> dict[str, SocketVerb]:
        """Return the verbs of the socket, measured."""
        return {name: replace(verb, run=partial(self._run, name, verb.run)) for name, verb in verbs.items()}

    def measure_verbs(self, face: MountedBackend) -> None:
        """Measure the verbs of a mount in this process."""
        for method, verb in MEASURED.items():
            setattr(face, method, self._measured(verb, getattr(face, method)))

    def _measured(self, verb: str, function: Callable[..., Any]) -> Callable[..., Any]:
        names = enumerate(inspect.signature(function).parameters)
        position, name = next((each for each in names if each[1] in PATHS), (sys.maxsize, ""))

        @functools.wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            route = self._route(_first(args[position] if position < len(args) else options.get(name)))
            return self.timed("verbs", verb, route, lambda: function(*args, **options))

        return measured

    def _begin(self, operation: str, of: Any) -> Callable[[int, Any], None]:
        """A request of the kernel has come; see `Operations.begin`."""
        route = self._asked(operation, of)  # before the call: `release` forgets the handle
        return partial(
            self._request, operation, "" if route is None else self._label(route.prefix), time.perf_counter()
        )

    def _asked(self, operation: str, of: Any) -> Route | None:
        """Return the route of a request by its first argument: a handle, or an inode. None if it is of several."""
        attached = self._tree.attached
        if operation in BY_HANDLE:
            handles = self._filesystem.directories if operation in BY_DIRECTORY else self._filesystem.files
            return handles[of].route if of in handles else None  # the handler answers that
        is_known = isinstance(of, int) and route_index(of) < len(attached)
        return attached[route_index(of)] if is_known else None

    def _request(self, operation: str, label: str, began: float, number: int, answer: Any) -> None:
        error = errno.errorcode.get(number, str(number)) if number else ""
        self.observe("kernel", operation, label, time.perf_counter() - began, error)
        if answer is None:
            return
        if operation == "read":
            self._bytes.labels("read", label).inc(len(answer))
        elif operation == "write":
            self._bytes.labels("written", label).inc(answer)
        elif operation == "open":
            self._opens.labels("hit" if answer.keep_cache else "miss", label).inc()

    def _run(self, name: str, run: Callable[[RunningCall, Any], Any], call: RunningCall, asked: Any) -> Any:
        return self.timed("socket", name, self._route(_path(asked)), lambda: run(call, asked))

    def timed(self, face: Face, operation: str, route: str, work: Callable[[], Any]) -> Any:
        """Do the work of a verb, and observe how long it takes and how it ends."""
        error = ""
        began = time.perf_counter()
        try:
            answer = work()
            error = FAILED if _has_failed(answer) else ""
        except Exception as failure:
            number = failure.errno if isinstance(failure, OSError) else None
            error = errno.errorcode.get(number or 0) or type(failure).__name__
            raise
        finally:
            self.observe(face, operation, route, time.perf_counter() - began, error)
        return answer

    def observe(self, face: Face, operation: str, route: str, seconds: float, error: str) -> None:
        """Take one request or verb. `route` is a label, empty for what concerns none."""
        place = (face, operation, route)
        observer = self._observers.get(place)
        if observer is None:
            observer = self._observers[place] = self._seconds.labels(*place).observe
        observer(seconds)
        if error:
            self._errors.labels(*place, error).inc()

    def _route(self, path: Any) -> str:
        """Return the label of the route of a path as agents name it; empty if it has none."""
        if not isinstance(path, str):
            return ""
        try:
            return self._label(self._tree.route_of(paths.normalise(path)).prefix)
        except PathError:
            return ""

    def _label(self, prefix: AgentPath) -> str:
        """Return the label of a route. All that is in the trees directory has one: branches and views come and go."""
        label = self._labels.get(prefix)
        if label is None:
            own = self._tree.trees_path
            above = own if own is not None and paths.is_below(prefix, own) else prefix
            label = self._labels[prefix] = name_shown(above if above == ROOT else f"{above}/")
        return label


MEASURED = {
    method: name
    for name, verb in SERVED.items()
    if name not in {"metrics", "stats"}
    for method in verb.within or (name,)
}
"""Methods of a mount in this process, and the verb that each one counts as. `stats` is its `ls` and each `stat`."""

PATHS = ("file_path", "path", "source", "paths", "files")
"""Parameters of verbs that say which route it is. A verb about several files counts at the route of the first."""


def _path(asked: Any) -> Any:
    """Return the path that the parameters of a verb have, or None."""
    return next((_first(getattr(asked, name)) for name in PATHS if hasattr(asked, name)), None)


def _first(said: Any) -> Any:
    """Return the first path of several; of files to upload, that of the first."""
    while isinstance(said, (list, tuple)):
        said = said[0] if said else None
    return getattr(said, "path", said)


def _has_failed(answer: Any) -> bool:
    """Return True if an answer, or one of several, has an error."""
    answers = answer if isinstance(answer, list) else [answer]
    return any(getattr(each, "error", None) is not None for each in answers)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


FAMILIES: Mapping[str, tuple[Any, ...]] = {
    "mount_info": ("The mount.", ("mountpoint", "version")),
    "start_time_seconds": ("When the mount was made, in seconds since 1970.", (), "started_at"),
    "known_inodes": ("Files and directories that the kernel knows.", (), "known_inodes"),
    "open_files": ("Files that are open.", (), "open_files"),
    "control_connections": ("Clients of the control socket.", (), "control", "connections"),
    "control_held_bytes": ("Memory that their calls hold.", (), "control", "held_bytes"),
    "control_waiting_calls": ("Their calls that wait for a turn.", (), "control", "waiting"),
    "control_refused": ("Their calls that were refused before they began: too much at once.", (), "control", "refused"),
    "commands_running": ("Commands that run in the mount.", ()),
    "kernel_errors": ("Requests of the kernel that ended with another error than everyday ones.", ()),
    "kernel_defects": ("Requests that a defect of the server ended.", ()),
    "kernel_requests": ("Requests of the kernel, by their kind.", ("operation",)),
    "route_state": ("1 for the state of a route: healthy, degraded or down.", ("route", "state")),
    "route_unstored_files": ("Files that are not stored yet.", ("route",)),
    "route_calls": ("The kernel's calls that run, and that wait for a place.", ("route", "state")),
    "route_timeouts": ("Calls that were given up at their deadline.", ("route",)),
    "route_abandoned": ("Calls whose process was killed meanwhile.", ("route",)),
    "route_refused": ("Calls that failed at once, because the route was down.", ("route",)),
}
"""What `status` has, as metrics: by name, its text and its labels, and where it is, if it is one number."""

COUNTERS = frozenset(
    {"control_refused", "kernel_errors", "kernel_defects", "kernel_requests", "route_timeouts", "route_abandoned",
     "route_refused"}
)  # fmt: skip
"""Those of the families that only grow."""


def _samples(status: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield name and value of each other sample, and its labels."""
    yield "mount_info", 1, name_shown(status["mountpoint"] or status["place"]), __version__
    counters = dict(status["counters"])
    yield "commands_running", status["execute"].get("running", 0)
    yield "kernel_errors", counters.pop("errors", 0)
    yield "kernel_defects", counters.pop("defects", 0)
    for operation, count in counters.items():
        yield "kernel_requests", count, operation
    for route in status["routes"]:
        prefix, health = name_shown(route["prefix"]), route["health"]
        yield "route_state", 1, prefix, health["state"]
        yield "route_unstored_files", route["unstored"], prefix
        yield "route_timeouts", route["timeouts"], prefix
        if "running" in health:  # a volume that does not block has no queue
            yield "route_calls", health["running"], prefix, "running"
            yield "route_calls", health["waiting"], prefix, "waiting"
            yield "route_abandoned", health["abandoned"], prefix
            yield "route_refused", health["refused"], prefix
