"""The settings of a mount, each declared once in `MountSettings`: a keyword of `mount()`, a key of the TOML file, a
word of `-o` and an option; and the `MountPlan` that a server starts with.

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

import contextlib
import functools
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from fusebackend.base import xdg
from fusebackend.base.here import absolute
from fusebackend.base.paths import ROOT, TREES_NAME, AgentPath, PathError, normalise_prefix
from fusebackend.base.settings import (
    SIZE,
    TIME,
    ConfigError,
    Field,
    Setting,
    Table,
    UnreadableConfigError,
    keys_of,
    read_table,
)
from fusebackend.history.masking import LogOptions
from fusebackend.history.requests import ApprovalOptions
from fusebackend.linux import mount_table
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.protocol.scheme import UrlError
from fusebackend.rules.rule import RouteRules, RuleTable
from fusebackend.rules.view import View, checked_views
from fusebackend.shell.options import ShellOptions
from fusebackend.vfs.options import DEFAULT_DEADLINE_S, RouteLimits, Shown, TreesOptions, check_name

T = TypeVar("T")


# --------------------------------------------------------------------------------------------------------------
# Settings
# --------------------------------------------------------------------------------------------------------------


class MetricsOptions(Table, frozen=True):
    """What is measured of a mount, and where Prometheus can ask for it: `[metrics]` of the TOML file. The table alone,
    without a key, measures and does not listen.

    Raises:
        ValueError: an address that can't be listened on, or is not this machine's own.
    """

    listen: Annotated[
        str | None, Setting("Address and port, such as 127.0.0.1:9464 or [::1]:9464. Port 0 is any that is free.")
    ] = None
    public: Annotated[
        bool, Setting("The address may be one that other machines reach. Nobody is asked for a password.")
    ] = False

    def __post_init__(self) -> None:
        self.address  # noqa: B018  # it raises

    @property
    def address(self) -> tuple[str, int] | None:
        """The address of this machine and the port to listen on, 0 for any; None if nobody listens."""
        if self.listen is None:
            return None
        import ipaddress  # most mounts listen nowhere

        host, _, port = self.listen.rpartition(":")
        said = f"listen = '{self.listen}'"
        try:
            address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
        except ValueError:
            raise ValueError(f"{said}: give an address and a port, such as '127.0.0.1:9464'") from None
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f"{said}: '{port}' is no port; give a number up to 65535")
        if not (address.is_loopback or self.public):
            raise ValueError(
                f"{said}: other machines may reach that, and nobody is asked for a password; give '127.0.0.1:…', or "
                "add public = true"
            )
        return str(address), int(port)


def by_prefix(pairs: Iterable[tuple[str, T]], *, has_root: bool = False) -> dict[AgentPath, T]:
    """Return routes, or what is said of them, by normalised prefix.

    Args:
        has_root: `/` is among them.

    Raises:
        ConfigError: a prefix is malformed, or two are the same after normalising.
    """
    routes: dict[AgentPath, T] = {}
    for prefix, said in pairs:
        try:
            normal = ROOT if has_root and prefix == ROOT else normalise_prefix(prefix)
        except PathError as error:
            raise ConfigError(str(error)) from None
        if normal in routes:
            raise ConfigError(f"route '{normal}/' is given twice")
        routes[normal] = said
    return routes


class MountSettings(Table, frozen=True, kw_only=True):
    """How files are mounted. A field is a keyword of `mount()`, a key of the TOML file, and, if its value is one word,
    a word of `-o` and an option of `mount`, `serve` and `doctor`. It stands in their help and in the reference.

    Raises:
        ValueError: a value is invalid.
    """

    read_only: Annotated[bool, Setting("Nothing can be changed through the mount.", words=("ro", "rw"))] = False
    allow_other: Annotated[bool, Setting("Users other than this one may come in, as far as modes allow.")] = False
    ttl_s: Annotated[
        float, Setting("How long the kernel caches files of a backend that others change unseen.", "ttl", TIME)
    ] = DEFAULT_TTL_S
    deadline_s: Annotated[
        float,
        Setting("How long a call into a backend that may wait (a network) takes at most; then it is ETIMEDOUT.",
                "deadline", TIME),
    ] = DEFAULT_DEADLINE_S  # fmt: skip
    idle: Annotated[
        Literal["sleep", "poll"],
        Setting("poll: processors may idle without sleep during bursts of requests, which are answered faster then."),
    ] = "sleep"
    trees: Annotated[
        Shown,
        Setting("How the mount has its own directory /.fusebackend: hidden, visible in listings of the root, or off."),
    ] = "hidden"
    trees_name: Annotated[str, Setting("Another name of that directory.")] = TREES_NAME
    snapshots: Annotated[
        Literal["auto", "manual"],
        Setting("auto: the mount takes snapshots by itself, every 10 s while there are changes, and deletes old ones; "
                "manual: it takes those that are asked for."),
    ] = "manual"  # fmt: skip
    history: Annotated[
        Literal["on", "off"],
        Setting("on: it keeps for a day which call changed what, and the bytes that it replaced, below "
                "$XDG_STATE_HOME/fusebackend."),
    ] = "off"  # fmt: skip
    options: Annotated[Sequence[str], Setting("-o words, such as noexec.")] = ()
    default_view: Annotated[str | None, Setting("The name of the view of commands, and of clients that name none.")] = (
        None
    )
    shell: Annotated[
        ShellOptions, Setting("How execute runs commands in the mount: sandbox, network, limits.", "execute")
    ] = ShellOptions()
    log: Annotated[LogOptions, Setting("What the history keeps of commands.")] = LogOptions()
    approvals: Annotated[ApprovalOptions, Setting("How long is waited for approvals (docs/approvals.md).")] = (
        ApprovalOptions()
    )
    metrics: Annotated[
        MetricsOptions | None, Setting("Measure requests and verbs, and where Prometheus can ask for it.")
    ] = None
    limits: Annotated[
        Mapping[str, RouteLimits],
        Setting("Other limits for single routes, by prefix; / is the default.", in_files=False),
    ] = {}
    route_rules: Annotated[
        Mapping[str, RouteRules],
        Setting("Rules of single routes for every reader, by prefix; / is the default.", in_files=False),
    ] = {}
    views: Annotated[
        Mapping[str, Sequence[Any]],
        Setting("Lists of rules by name. A rule is a mapping with operations, paths and mode, or a "
                "FilesystemPermission of deepagents; docs/views.md has the rest.", in_files=False),
    ] = {}  # fmt: skip
    view_mounts: Annotated[
        Mapping[str, Any],
        Setting("An empty directory for each view that is to have a mount point of its own, by name. Only root can "
                "make these.", in_files=False),
    ] = {}  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        RouteLimits(self.deadline_s)
        check_name(self.trees_name)
        for name in ("limits", "route_rules"):
            force_setattr(self, name, by_prefix(getattr(self, name).items(), has_root=True))
        force_setattr(self, "options", tuple(self.options))
        force_setattr(self, "views", {name: list(rules) for name, rules in self.views.items()})
        places = {name: absolute(place) for name, place in self.view_mounts.items()}
        force_setattr(self, "view_mounts", places)

    @property
    def shown_trees(self) -> TreesOptions:
        """How the mount shows its trees directory."""
        return TreesOptions(self.trees, self.trees_name)

    def checked_views(self) -> dict[str, View]:
        """Return the views by name.

        Raises:
            RuleError: one is invalid, or there is none of the default one's name.
        """
        return checked_views(self.views, self.default_view)

    @property
    def keeps_history(self) -> bool:
        """Whether there is a history of calls: a mount that can't be changed has none."""
        return self.history == "on" and not self.read_only

    def but(self, words: Iterable[str] = (), **given: Any) -> MountSettings:
        """Return these settings with others in their place.

        Args:
            words: of `-o`, each one or several with commas between. Of two that disagree, the later one counts.
            given: by name; they count before the words.

        Raises:
            ConfigError: a word is unknown, or a value is invalid.
        """
        said = parse_words(words)
        said["options"] = (*self.options, *said.get("options", ()))
        try:
            made = replace(self, **{**said, **given})
            made.checked_views()
            return made
        except ValueError as error:
            raise ConfigError(str(error)) from None


COMMAND_LINE = MountSettings(snapshots="auto", history="on")
"""What the command line and a file that say nothing mean."""


# --------------------------------------------------------------------------------------------------------------
# -o words
# --------------------------------------------------------------------------------------------------------------

PASSED_ON = (
    "acl",
    "suid", "nosuid", "dev", "nodev", "exec", "noexec", "noatime", "sync", "async", "dirsync", "auto_unmount",
)  # fmt: skip
"""Words that are no setting: POSIX ACLs, which the kernel checks, and options that libfuse gets as they are. Those that
would break an assumption of the server are not here, nor is `atime`, which libfuse 3.17 does not know."""


def scalars() -> Iterator[Field]:
    """Yield the settings with a value of one word, with the defaults that they have on the command line: words of `-o`,
    and options."""
    for field in keys_of(MountSettings):
        if not field.is_table and field.name != "options":
            yield field._replace(default=getattr(COMMAND_LINE, field.name))


def metavar(field: Field) -> str:
    """Return what stands for a value in help texts."""
    return "NAME" if field.setting.unit is None else field.setting.unit.metavar


def default_text(field: Field) -> str:
    """Return the default of a setting for people; empty where it is nothing, or off."""
    if not isinstance(field.default, (int, float, str)) or field.default is False:
        return ""
    return str(field.default) if field.setting.unit is None else field.setting.unit.shown(field.default)


def words_of(field: Field) -> tuple[str, ...]:
    """Return the words of a setting, as help shows them. Those of a switch are for on and off."""
    if field.type is bool:
        return field.setting.words or (field.key,)
    return tuple(f"{field.key}={choice}" for choice in field.choices or (metavar(field),))


@functools.cache
def words_known() -> tuple[str, ...]:
    """Return all words of `-o`, as help shows them."""
    return (*(word for field in scalars() for word in words_of(field)), *PASSED_ON)


def parse_words(options: Iterable[str]) -> dict[str, Any]:
    """Parse `-o` options, each one word or several with commas between; of two that disagree, the later one counts.

    Returns:
        Settings by name. Words that are none are in `options`.

    Raises:
        ConfigError: a word is unknown, or its value is malformed.
    """
    switches = {word: field for field in scalars() if field.type is bool for word in words_of(field)}
    keyed = {field.key: field for field in scalars() if field.type is not bool}
    found: dict[str, Any] = {"options": ()}
    for word in (word.strip() for option in options for word in option.split(",")):
        key, equals, value = word.partition("=")
        if word in switches:
            found[switches[word].name] = word == words_of(switches[word])[0]
        elif equals and key in keyed:
            found[keyed[key].name] = keyed[key].read(value, key)
        elif word in PASSED_ON:
            found["options"] += (word,)
        elif word:
            raise ConfigError(f"unknown option '-o {word}'; known: {', '.join(words_known())}")
    return found


# --------------------------------------------------------------------------------------------------------------
# The TOML file
# --------------------------------------------------------------------------------------------------------------


class RouteSettings(Table, frozen=True, kw_only=True):
    """A route: its URL, its own limits, and its own rules."""

    url: Annotated[str, Setting("Its URL.")]
    limits: Annotated[RouteLimits, Setting("", is_inline=True)] = RouteLimits()
    rules: Annotated[RouteRules, Setting("", is_inline=True)] = RouteRules()
    limit_bytes: Annotated[int | None, Setting("How much it may hold; more is EDQUOT.", unit=SIZE)] = None
    limit_files: Annotated[
        int | None, Setting("How many files, directories and links it may hold; more is EDQUOT.")
    ] = None

    @property
    def text(self) -> str:
        """Its URL, with the limits that stand beside it: they are parameters of it."""
        limits = {"limit_bytes": self.limit_bytes, "limit_files": self.limit_files}
        words = "&".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        return f"{self.url}{'&' if '?' in self.url else '?'}{words}" if words else self.url

    @property
    def has(self) -> str:
        """What it has that the command line can't say with a URL: `rules`, `limits`, or nothing."""
        return "rules" if self.rules else "limits" if self.text != self.url else ""


class ViewTable(Table, frozen=True, kw_only=True):
    """A view: `[views.NAME]`."""

    rules: Annotated[Sequence[RuleTable], Setting("The first that matches decides.")]
    mount: Annotated[str | None, Setting("An empty directory for a mount point of its own.")] = None


class ConfigFile(Table, frozen=True, kw_only=True):
    """A TOML file. Beside where things are, it has the keys of `MountSettings`."""

    mountpoint: Annotated[str | None, Setting("Where to mount: an empty directory.")] = None
    default: Annotated[
        str | RouteSettings | None,
        Setting("The URL of what is at the root; a file of its own per mount point if not given."),
    ] = None
    routes: Annotated[Mapping[str, str | RouteSettings], Setting("URLs of other backends, by prefix.")] = {}
    settings: Annotated[MountSettings, Setting("", is_inline=True)] = COMMAND_LINE
    views: Annotated[Mapping[str, ViewTable], Setting("Views by name (docs/views.md).")] = {}

    def route_tables(self) -> dict[AgentPath, RouteSettings]:
        """Return the routes by normalised prefix, the default's at `/` if there is one.

        Raises:
            ConfigError: a prefix is malformed, or two are the same.
        """
        said = [*by_prefix(self.routes.items()).items()]
        if self.default is not None:
            said.append((ROOT, self.default))
        return {prefix: RouteSettings(url=each) if isinstance(each, str) else each for prefix, each in said}


def read_file(path: str) -> ConfigFile:
    """Read and check a TOML file. Words of its `options` count before its other settings.

    Raises:
        UnreadableConfigError: the file can't be read.
        ConfigError: it is no TOML, has an unknown key, or an invalid value.
    """
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise UnreadableConfigError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"'{path}' is no TOML: {error}") from None
    base = os.path.dirname(os.path.abspath(path))
    with named(path):
        _check_place(data)
        found = read_table(ConfigFile, data)
        found.route_tables()
        mounts = {name: view.mount for name, view in found.views.items() if view.mount is not None}
        settings = replace(found.settings, options=()).but(
            found.settings.options,
            views={name: msgspec.to_builtins(view.rules) for name, view in found.views.items()},
            view_mounts={name: os.path.join(base, os.path.expanduser(place)) for name, place in mounts.items()},
        )
        return replace(found, settings=settings)


@contextlib.contextmanager
def named(path: str | None) -> Iterator[None]:
    """Name the file in the error of a value that it holds."""
    try:
        yield
    except (ConfigError, UrlError) as error:
        raise type(error)(f"'{path}': {error}") from None


def _check_place(data: dict[str, Any]) -> None:
    """Refuse a setting below `[routes]`, where TOML makes it a route, and the setting would keep its default."""
    routes = data.get("routes")
    settings = {field.key for field in keys_of(ConfigFile) if not field.is_table or field.key == "default"}
    for name in settings.intersection(routes if isinstance(routes, dict) else ()):
        above = "settings stand above the first [table]"
        raise ConfigError(f"'{name}' below [routes] is no setting; {above}, and a route is '/{name}/'")


# --------------------------------------------------------------------------------------------------------------
# The plan of a server
# --------------------------------------------------------------------------------------------------------------


class MountPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a server needs, as plain values: it goes to a process of its own as JSON."""

    mountpoint: str
    """An absolute path; what stands for it where nothing is mounted (`place_of`)."""
    urls: dict[str, str] = {}
    """The URL of every route by its normalised prefix, the default's under `/`; none for backends of this process."""
    settings: MountSettings = MountSettings()
    log: str | None = None
    history: str | None = None
    """The directory of the history of calls; None if none is kept."""
    is_mounted: bool = True
    """False if the verbs alone are served."""
    source: str = mount_table.SUBTYPE
    """What the table of mounts shows as the device."""
    socket: str | None = None
    """Where the control socket is, in place of the runtime directory."""
    sessions: str | None = None
    """The file that sessions keep locked (`rendezvous.session`): the server ends with the last of them."""


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


_KEPT = {"db": "XDG_DATA_HOME", "branches": "XDG_DATA_HOME", "log": "XDG_STATE_HOME", "history": "XDG_STATE_HOME"}
"""By kind: the variable of the directory above."""


def kept_at(mountpoint: str, kind: Literal["db", "branches", "log", "history"]) -> str:
    """Return where something of a mount point is kept: its default database, the directory of its branches, its
    server's log, or the directory of its history: `$XDG_DATA_HOME/fusebackend/<mount point>.db`, and so on."""
    return xdg.path(_KEPT[kind], f"{escape_mountpoint(mountpoint)}.{kind}")
