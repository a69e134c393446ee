"""The configuration of a mount: a TOML file, `-o` words, and the `MountPlan` that a server starts with.

    mountpoint = "/mnt/agent"
    default = "sqlite:agent.db"
    ttl = "1 s"

    [routes]
    "/memories/" = "sqlite:memories.db"
    "/team/" = { url = "postgres:dbname=team", deadline = "5 s", max_calls = 16 }

    [execute]
    network = true
    memory = "4 GiB"

Relative paths in a file start from the file's own directory, so its meaning does not depend on the working directory.
An unknown key is an error: a misspelt `read_only` must not mount something writable.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from fusebackend.base import sizes, xdg
from fusebackend.base.paths import AgentPath, PathError, normalise_prefix
from fusebackend.history.masking import LogOptions
from fusebackend.history.requests import ApprovalOptions
from fusebackend.linux import mount_table
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.rules.rule import RouteRules, RuleError
from fusebackend.rules.view import checked_views
from fusebackend.shell.options import ShellOptions
from fusebackend.vfs.calls.route_limits import DEFAULT_DEADLINE_S, RouteLimits
from fusebackend.vfs.trees_options import TreesOptions

_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class ConfigError(ValueError):
    """A configuration is invalid. Its `str` is one line for the user."""


class UnreadableConfigError(ConfigError):
    """Its file can't be read now: it may be there later, as a disk that is mounted late."""


class ExecuteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How commands run in the mount: `[execute]`. A missing key has the default of `ShellOptions`."""

    sandbox: str | None = None
    network: bool | None = None
    timeout: float | str | None = None
    max_timeout: float | str | None = None
    max_output_bytes: int | None = None
    memory: int | str | None = None
    processes: int | None = None
    total_memory: int | str | None = None
    total_processes: int | None = None
    total_cpus: float | None = None
    env: dict[str, str] | None = None
    trees: list[str] | None = None


class LogTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What the history keeps of calls: `[log]`. A missing key has the default of `LogOptions`."""

    commands: str | None = None


class ApprovalsTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long is waited for approvals: `[approvals]`. A missing key has the default of `ApprovalOptions`."""

    wait: float | str | None = None
    expire: float | str | None = None


class MetricsTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What is measured: `[metrics]`. The table alone, without a key, measures and does not listen."""

    listen: str | None = None
    public: bool = False


class RouteTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A route given as a table: its URL, its own limits, which `RouteLimits` explains, and its own rules, which
    `RouteRules` does. `limit_bytes` and `limit_files` are parameters of its URL."""

    url: str
    deadline: float | str | None = None
    max_calls: int | None = None
    read_only: bool = False
    hide: list[str] = []
    limit_bytes: int | str | None = None
    limit_files: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it says how much the route may hold."""
        return self.limit_bytes is not None or self.limit_files is not None


class RuleTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A rule of a view, which `Rule` explains."""

    operations: list[str]
    paths: list[str]
    mode: str = "allow"


class ViewTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A view: `[views.NAME]`."""

    rules: list[RuleTable]
    mount: str | None = None


class ConfigFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The keys of a TOML file; each has the meaning of the command line's option of that name."""

    mountpoint: str | None = None
    default: str | RouteTable | None = None
    routes: dict[str, str | RouteTable] = {}
    read_only: bool = False
    allow_other: bool = False
    ttl: float | str | None = None
    deadline: float | str | None = None
    trees: str | None = None
    trees_name: str | None = None
    snapshots: str | None = None
    history: str | None = None
    options: list[str] = []
    execute: ExecuteTable = ExecuteTable()
    views: dict[str, ViewTable] = {}
    default_view: str | None = None
    log: LogTable = LogTable()
    approvals: ApprovalsTable = ApprovalsTable()
    metrics: MetricsTable | None = None


class MetricsOptions(NamedTuple):
    """What is measured of a mount, and where a Prometheus server can ask for it.

    Raises `ValueError` in `of` for an address that can't be listened on, or is not this machine's own.
    """

    host: str | None = None
    """An address of this machine; None if nobody listens."""
    port: int = 0
    """0 for any that is free. `status` says which."""

    @classmethod
    def of(cls, listen: str | None = None, *, public: bool = False) -> MetricsOptions:
        """Return the options.

        Args:
            listen: address and port, such as `127.0.0.1:9464` or `[::1]:9464`. Nobody listens when None.
            public: the address may be reached from other machines. There is no password.
        """
        if listen is None:
            return cls()
        import ipaddress  # most mounts listen nowhere

        host, _, port = listen.rpartition(":")
        try:
            address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
        except ValueError:
            raise ValueError(f"listen = '{listen}': give an address and a port, such as '127.0.0.1:9464'") from None
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f"listen = '{listen}': '{port}' is no port; give a number up to 65535")
        if not (address.is_loopback or public):
            raise ValueError(
                f"listen = '{listen}': other machines may reach that, and nobody is asked for a password; give "
                "'127.0.0.1:…', or add public = true"
            )
        return cls(str(address), int(port))


@dataclass(frozen=True)
class MountPlan:
    """Everything that a server needs: the URLs are `urls.Url.text`, prefixes are normalised, paths are absolute."""

    mountpoint: str
    default: str
    routes: dict[str, str] = field(default_factory=dict)
    read_only: bool = False
    allow_other: bool = False
    ttl_s: float = DEFAULT_TTL_S
    deadline_s: float = DEFAULT_DEADLINE_S
    limits: dict[AgentPath, RouteLimits] = field(default_factory=dict)
    may_keep_awake: bool = False
    words: tuple[str, ...] = ()
    log: str | None = None
    execute: ShellOptions = field(default_factory=ShellOptions)
    trees: TreesOptions = field(default_factory=TreesOptions)
    takes_snapshots: bool = True
    history: str | None = None
    """The directory of the history of calls; None if none is kept."""
    route_rules: dict[AgentPath, RouteRules] = field(default_factory=dict)
    views: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The rules of each view, as JSON."""
    default_view: str | None = None
    view_mounts: dict[str, str] = field(default_factory=dict)
    """The mount point of each view that has one, as an absolute path."""
    log_options: LogOptions = field(default_factory=LogOptions)
    approvals: ApprovalOptions = field(default_factory=ApprovalOptions)
    metrics: MetricsOptions | None = None
    """None if nothing is measured."""
    is_mounted: bool = True
    """False if the verbs alone are served; `mountpoint` is the place then (`place_of`)."""
    source: str = mount_table.SUBTYPE
    """What the table of mounts shows as the device."""
    socket: str | None = None
    """Where the control socket is, in place of the runtime directory."""
    sessions: str | None = None
    """The file that sessions keep locked (`rendezvous.session`): the server ends with the last of them."""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> MountPlan:
        """Build the plan from its `dataclasses.asdict` after a round trip through JSON."""
        made = {
            "words": tuple(fields["words"]),
            "execute": ShellOptions(**fields["execute"]),
            "limits": {AgentPath(prefix): RouteLimits(**said) for prefix, said in fields["limits"].items()},
            "trees": TreesOptions(**fields["trees"]),
            "route_rules": {AgentPath(prefix): RouteRules(**said) for prefix, said in fields["route_rules"].items()},
            "log_options": LogOptions(*fields["log_options"]),
            "approvals": ApprovalOptions(*fields["approvals"]),
            "metrics": None if fields["metrics"] is None else MetricsOptions(*fields["metrics"]),
        }
        return cls(**{**fields, **made})

    def urls(self) -> dict[str, str]:
        """Return the URL of every route by its prefix, the default's under `/`."""
        return {"/": self.default, **{prefix: self.routes[prefix] for prefix in sorted(self.routes)}}


def read_file(path: str) -> ConfigFile:
    """Read and check a TOML file.

    Raises:
        UnreadableConfigError: the file can't be read.
        ConfigError: it is no TOML, has an unknown key, or a value of the wrong type.
    """
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise UnreadableConfigError(f"cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is no TOML: {error}") from None
    _check_keys(path, data, ConfigFile.__struct_fields__)
    _check_place(path, data)
    if isinstance(data.get("execute"), dict):
        _check_keys(path, data["execute"], ExecuteTable.__struct_fields__, "execute.")
    if isinstance(data.get("log"), dict):
        _check_keys(path, data["log"], LogTable.__struct_fields__, "log.")
    if isinstance(data.get("approvals"), dict):
        _check_keys(path, data["approvals"], ApprovalsTable.__struct_fields__, "approvals.")
    if isinstance(data.get("metrics"), dict):
        _check_keys(path, data["metrics"], MetricsTable.__struct_fields__, "metrics.")
    for where, table, kind in (*_route_tables(data), *_view_tables(data)):
        _check_keys(path, table, kind.__struct_fields__, f"{where}.")
        try:
            msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"'{path}': {_in_words(str(error), table, f'{where}.')}") from None
    try:
        return msgspec.convert(data, ConfigFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"'{path}': {_in_words(str(error), data)}") from None


def _check_keys(path: str, table: dict[str, Any], known: tuple[str, ...], prefix: str = "") -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"'{path}': unknown key '{prefix}{key}'; known: {', '.join(known)}")


_TABLES = ("routes", "execute", "views", "log", "approvals", "metrics")


def _check_place(path: str, data: dict[str, Any]) -> None:
    """Refuse a setting below `[routes]`, where TOML makes it a route, and the setting would keep its default."""
    routes = data.get("routes")
    for name in routes if isinstance(routes, dict) else ():
        if name in ConfigFile.__struct_fields__ and name not in _TABLES:
            above = "settings stand above the first [table]"
            raise ConfigError(f"'{path}': '{name}' below [routes] is no setting; {above}, and a route is '/{name}/'")


Table = tuple[str, dict[str, Any], type[msgspec.Struct]]
"""A table within the file: its dotted key, what it holds, and what it should."""


def _view_tables(data: dict[str, Any]) -> Iterator[Table]:
    """Yield the rules, and then the views that they are of."""
    views = data.get("views")
    for name, said in views.items() if isinstance(views, dict) else ():
        if isinstance(said, dict):
            rules = said.get("rules")
            for number, rule in enumerate(rules if isinstance(rules, list) else (), 1):
                if isinstance(rule, dict):
                    yield f"views.{name}.rules[{number}]", rule, RuleTable
            yield f"views.{name}", said, ViewTable


def _route_tables(data: dict[str, Any]) -> Iterator[Table]:
    """Yield the routes that are tables."""
    if isinstance(data.get("default"), dict):
        yield "default", data["default"], RouteTable
    routes = data.get("routes")
    for prefix, said in routes.items() if isinstance(routes, dict) else ():
        if isinstance(said, dict):
            yield f"routes.{prefix}", said, RouteTable


_TYPES = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text", "object": "a table",
    "array": "a list",
}  # fmt: skip
"""msgspec's names of types, in the words of the error messages."""


def _in_words(message: str, data: dict[str, Any], table: str = "") -> str:
    """Turn msgspec's "Expected `int`, got `str` - at `$.x`" into "'x': expected a whole number, got a text"."""
    what, _, where = message.partition(" - at ")
    what = what.replace("`", "").replace("object | ", "").replace(" | object", "").replace(" | null", "")
    what = re.sub(r"\b(bool|int|float|str|object|array)\b", lambda found: _TYPES[found[0]], what)
    what = re.sub(r"Object missing required field (\w+)", r"\1 is missing", what)
    key = table + where.strip("`").removeprefix("$.")
    if key.endswith("[...]"):  # msgspec does not name the entry
        key = key.removesuffix("[...]")
        for name in key.split("."):
            data = data[name]
        key = f"{key}.{next(entry for entry, value in data.items() if not isinstance(value, (str, dict)))}"
    return f"'{key.removesuffix('.')}': {what[:1].lower()}{what[1:]}"


def duration_s(value: float | str) -> float:
    """Parse a length of time into seconds: a number, or text such as `1 s`, `500 ms`, `2 min`, `1 h`.

    Raises:
        ConfigError: `value` is none of these, negative, or not finite.
    """
    match = _QUANTITY.fullmatch(str(value).strip().lower())
    if match is None or match[2] not in _UNIT_S:
        raise ConfigError(f"'{value}' is no length of time; write seconds, or for example '500 ms', '1 s', '2 min'")
    return float(match[1]) * _UNIT_S[match[2]]


def size_bytes(value: int | str) -> int:
    """Parse a size into bytes: a number, or text such as `64 MiB`, `1.5 GiB`, `1 GB`.

    Raises:
        ConfigError: `value` is none of these.
    """
    try:
        return sizes.size_bytes(value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


Meaning = TypeVar("Meaning")


def meant(key: str, meaning: Callable[[Any], Meaning], value: object) -> Meaning | None:
    """Parse a value of the file with `meaning`; None stays None.

    Raises:
        ConfigError: the value is invalid; the message begins with `key`.
    """
    try:
        return None if value is None else meaning(value)
    except ConfigError as error:
        raise ConfigError(f"'{key}': {error}") from None


def shell_options(table: ExecuteTable) -> ShellOptions:
    """Build the options of commands from the file's `[execute]`.

    Raises:
        ConfigError: a value is invalid.
    """
    said = {
        "sandbox": table.sandbox,
        "network": table.network,
        "timeout_s": meant("execute.timeout", duration_s, table.timeout),
        "max_timeout_s": meant("execute.max_timeout", duration_s, table.max_timeout),
        "max_output_bytes": table.max_output_bytes,
        "memory_bytes": meant("execute.memory", size_bytes, table.memory),
        "max_processes": table.processes,
        "total_memory_bytes": meant("execute.total_memory", size_bytes, table.total_memory),
        "total_processes": table.total_processes,
        "total_cpus": table.total_cpus,
        "env": table.env,
        "trees": table.trees,
    }
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    try:
        return ShellOptions(**given)
    except ValueError as error:
        raise ConfigError(f"[execute]: {error}") from None


def url_of(said: str | RouteTable) -> str:
    """Return the URL of a route of the file, with the limits that stand beside it.

    Raises:
        ConfigError: `limit_bytes` is no size.
    """
    if isinstance(said, str):
        return said
    limits = {"limit_bytes": meant("limit_bytes", size_bytes, said.limit_bytes), "limit_files": said.limit_files}
    words = "&".join(f"{name}={value}" for name, value in limits.items() if value is not None)
    return f"{said.url}{'&' if '?' in said.url else '?'}{words}" if words else said.url


def limits_of(prefix: str, said: str | RouteTable) -> RouteLimits:
    """Return the limits of a route of the file; without a table, all are unset.

    Raises:
        ConfigError: a limit is out of range.
    """
    if isinstance(said, str):
        return RouteLimits()
    try:
        return RouteLimits(None if said.deadline is None else duration_s(said.deadline), said.max_calls)
    except ValueError as error:
        raise ConfigError(f"route '{prefix}': {error}") from None


def route_rules_of(prefix: str, said: str | RouteTable) -> RouteRules:
    """Return the rules of a route of the file.

    Raises:
        ConfigError: a glob is invalid.
    """
    try:
        return RouteRules() if isinstance(said, str) else RouteRules(said.read_only, tuple(said.hide))
    except RuleError as error:
        raise ConfigError(f"route '{prefix}': {error}") from None


def views_of(file: ConfigFile) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each view of the file, as JSON.

    Raises:
        ConfigError: a view or the name of the default one is invalid.
    """
    said = {name: [msgspec.to_builtins(rule) for rule in view.rules] for name, view in file.views.items()}
    try:
        checked_views(said, file.default_view)
    except RuleError as error:
        raise ConfigError(str(error)) from None
    return said


def deadline_s(value: float | str) -> float:
    """Parse the deadline of all routes without one of their own, in seconds.

    Raises:
        ConfigError: `value` is no length of time, or 0.
    """
    try:
        return RouteLimits(duration_s(value)).deadline_s or DEFAULT_DEADLINE_S
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None


def trees_options(shown: str | None, name: str | None) -> TreesOptions:
    """Build the options of the trees directory; None is the default of each.

    Raises:
        ConfigError: a value is invalid.
    """
    try:
        return TreesOptions.of(shown, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def log_options(table: LogTable) -> LogOptions:
    """Return what the history keeps of calls, of a table's values and the defaults.

    Raises:
        ConfigError: a value is invalid.
    """
    try:
        return LogOptions.of(table.commands)
    except ValueError as error:
        raise ConfigError(f"log.{error}") from None


def approval_options(table: ApprovalsTable) -> ApprovalOptions:
    """Return how long is waited for approvals, of a table's values and the defaults.

    Raises:
        ConfigError: a value is invalid.
    """
    wait_s = meant("approvals.wait", duration_s, table.wait)
    expire_s = meant("approvals.expire", duration_s, table.expire)
    try:
        return ApprovalOptions.of(wait_s, expire_s)
    except ValueError as error:
        raise ConfigError(f"approvals.{error}") from None


def metrics_options(table: MetricsTable | None) -> MetricsOptions | None:
    """Return what is measured; None without the table.

    Raises:
        ConfigError: a value is invalid.
    """
    try:
        return None if table is None else MetricsOptions.of(table.listen, public=table.public)
    except ValueError as error:
        raise ConfigError(f"metrics.{error}") from None


SnapshotsWord = Literal["auto", "manual"]


def takes_snapshots(word: str) -> bool:
    """Return True if the mount takes snapshots by itself.

    Raises:
        ConfigError: another word than `auto` and `manual`.
    """
    if word not in get_args(SnapshotsWord):
        raise ConfigError(f"snapshots={word!r}: give one of {', '.join(get_args(SnapshotsWord))}")
    return word == "auto"


HistoryWord = Literal["on", "off"]


def keeps_history(word: str) -> bool:
    """Return True if the mount keeps a history of calls.

    Raises:
        ConfigError: another word than `on` and `off`.
    """
    if word not in get_args(HistoryWord):
        raise ConfigError(f"history={word!r}: give one of {', '.join(get_args(HistoryWord))}")
    return word == "on"


T = TypeVar("T")


def routes_by_prefix(pairs: Iterable[tuple[str, T]]) -> dict[AgentPath, T]:
    """Return the routes (or their limits) by normalised prefix.

    Raises:
        ConfigError: a prefix is malformed, or two are the same after normalising.
    """
    routes: dict[AgentPath, T] = {}
    for prefix, said in pairs:
        try:
            normal = normalise_prefix(prefix)
        except PathError as error:
            raise ConfigError(str(error)) from None
        if normal in routes:
            raise ConfigError(f"route '{normal}/' is given twice")
        routes[normal] = said
    return routes


# --------------------------------------------------------------------------------------------------------------
# -o words
# --------------------------------------------------------------------------------------------------------------

LIBFUSE_WORDS = (
    "suid", "nosuid", "dev", "nodev", "exec", "noexec", "atime", "noatime", "sync", "async", "dirsync", "auto_unmount",
)  # fmt: skip
"""Options passed on to libfuse as they are. Those that would break an assumption of the server are not here."""

OWN_WORDS = (
    "ro", "rw", "allow_other", "ttl=TIME", "deadline=TIME", "idle=poll", "idle=sleep", "acl",
    "trees=hidden", "trees=visible", "trees=off", "trees_name=NAME",
    "snapshots=auto", "snapshots=manual", "history=on", "history=off",
)  # fmt: skip


@dataclass(frozen=True)
class Words:
    """The `-o` words, parsed. A field is None where no word sets it, so that the file or the default applies."""

    read_only: bool | None = None
    allow_other: bool | None = None
    ttl_s: float | None = None
    deadline_s: float | None = None
    may_keep_awake: bool = False
    libfuse: tuple[str, ...] = ()
    trees: str | None = None
    trees_name: str | None = None
    snapshots: str | None = None
    history: str | None = None


def parse_words(options: list[str]) -> Words:
    """Parse `-o` options, each one word or several with commas between; of two that disagree, the later one counts.

    Raises:
        ConfigError: a word is unknown, or its value is invalid.
    """
    read_only = allow_other = ttl_s = most_s = trees = trees_name = snapshots = history = None
    may_keep_awake = False
    libfuse: list[str] = []
    for word in (word.strip() for option in options for word in option.split(",")):
        if word in ("ro", "rw"):
            read_only = word == "ro"
        elif word == "allow_other":
            allow_other = True
        elif word.startswith("ttl="):
            ttl_s = duration_s(word.removeprefix("ttl="))
        elif word.startswith("deadline="):
            most_s = deadline_s(word.removeprefix("deadline="))
        elif word in ("idle=poll", "idle=sleep"):
            may_keep_awake = word == "idle=poll"
        elif word.startswith("trees="):
            trees = trees_options(word.removeprefix("trees="), None).shown
        elif word.startswith("trees_name="):
            trees_name = trees_options(None, word.removeprefix("trees_name=")).name
        elif word.startswith("snapshots="):
            snapshots = word.removeprefix("snapshots=")
            takes_snapshots(snapshots)
        elif word.startswith("history="):
            history = word.removeprefix("history=")
            keeps_history(history)
        elif word in LIBFUSE_WORDS or word == "acl":
            libfuse.append(word)
        elif word:
            raise ConfigError(f"unknown option '-o {word}'; known: {', '.join((*OWN_WORDS, *LIBFUSE_WORDS))}")
    known = tuple(libfuse)
    return Words(read_only, allow_other, ttl_s, most_s, may_keep_awake, known, trees, trees_name, snapshots, history)


# --------------------------------------------------------------------------------------------------------------
# Paths of data and logs
# --------------------------------------------------------------------------------------------------------------

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9.]")


def escape_mountpoint(path: str) -> str:
    """Turn a mount point into a file name: `/mnt/agent` is `mnt-agent`. Two mount points never share one."""

    def escape(match: re.Match[str]) -> str:
        return "-" if match[0] == "/" else "".join(f"_{byte:02x}" for byte in os.fsencode(match[0]))

    name = _NOT_IN_FILE_NAMES.sub(escape, path.strip("/"))
    if len(name) <= 200:
        return name
    import hashlib

    return f"{name[:160]}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}"


def place_of(path: str, file: ConfigFile) -> str:
    """Return what stands for the mount point of a configuration that is served without a mount: the mount point that it
    names, so that its branches and its history are those of the mount; else the file itself."""
    if file.mountpoint is None:
        return os.path.realpath(path)
    return mount_table.resolve(
        os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(file.mountpoint))
    )


def data_file(mountpoint: str) -> str:
    """Return the path of a mount point's default database: `$XDG_DATA_HOME/fusebackend/<mount point>.db`."""
    return xdg.path("XDG_DATA_HOME", ".local/share", f"{escape_mountpoint(mountpoint)}.db")


def branches_directory(mountpoint: str) -> str:
    """Return the directory of a mount point's branches: `$XDG_DATA_HOME/fusebackend/<mount point>.branches`."""
    return xdg.path("XDG_DATA_HOME", ".local/share", f"{escape_mountpoint(mountpoint)}.branches")


def log_file(mountpoint: str) -> str:
    """Return the path of a mount point's server log: `$XDG_STATE_HOME/fusebackend/<mount point>.log`."""
    return xdg.path("XDG_STATE_HOME", ".local/state", f"{escape_mountpoint(mountpoint)}.log")


def history_directory(mountpoint: str) -> str:
    """Return the path of a mount point's history: `$XDG_STATE_HOME/fusebackend/<mount point>.history`."""
    return xdg.path("XDG_STATE_HOME", ".local/state", f"{escape_mountpoint(mountpoint)}.history")
