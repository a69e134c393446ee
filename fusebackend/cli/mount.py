"""`fusebackend mount`: make a plan of the command line and the file, check it, and start a server with it.

`fusebackend serve`: the same by the control socket alone, where nothing can be mounted.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

import click
from msgspec.structs import replace

from fusebackend import config, urls
from fusebackend.base import xdg
from fusebackend.base.here import absolute
from fusebackend.base.paths import ROOT, is_below
from fusebackend.base.settings import ConfigError, Field
from fusebackend.cli.serve import serve as serve_here
from fusebackend.cli.serve import start
from fusebackend.cli.show import Failed, announce
from fusebackend.cli.target import complete_route, complete_url, complete_words
from fusebackend.config import ConfigFile, MountPlan
from fusebackend.control import rendezvous
from fusebackend.linux import mount_point as point
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.urls import UrlError

LOOK = "'fusebackend doctor' looks at all that a mount needs, and 'fusebackend serve' does without one"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class MountLine:
    """What a command line says of a mount. Where it says nothing, the file counts."""

    default: str | None = None
    routes: Sequence[str] = ()
    config_path: str | None = None
    options: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By name, as they were given."""

    @functools.cached_property
    def file(self) -> ConfigFile:
        """The file, read once; an empty one if none is given."""
        return config.read_file(self.config_path) if self.config_path is not None else ConfigFile()

    @property
    def base(self) -> str:
        """The directory that relative paths in the file start from."""
        return os.path.dirname(os.path.abspath(self.config_path)) if self.config_path is not None else ""

    def place(self, mountpoint: str | None = None) -> str:
        """Return the mount point: the given one, or what the file has in its place (`config.place_of`). Without
        both it is the current directory."""
        if mountpoint is not None:
            return table.resolve(mountpoint)
        return config.place_of(self.config_path, self.file) if self.config_path is not None else os.getcwd()


def line_options(function: F) -> F:
    """Give a command the options of a mount: a `MountLine`, its first argument."""

    def packed(**given: Any) -> Any:
        settings = {each.name: each.read(given[each.name], option_of(each))
                    for each in config.scalars() if given[each.name] is not None}  # fmt: skip
        parts = {each.name: given[each.name] for each in fields(MountLine) if each.name != "settings"}
        others = {name: given[name] for name in given if name not in parts and name not in names}
        return function(MountLine(**parts, settings=settings), **others)

    names = {each.name for each in config.scalars()}
    command = functools.update_wrapper(packed, function)
    words = click.option("-o", "options", multiple=True, shell_complete=complete_words, metavar="OPTION",
                         help=f"Words with commas between: {', '.join(config.words_known())}.")  # fmt: skip
    for option in (
        words,
        *reversed([_setting_option(each) for each in config.scalars()]),
        click.option("--config", "config_path", metavar="FILE",
                     help="Read all this from a TOML file; the command line wins."),
        click.option("--route", "routes", multiple=True, shell_complete=complete_route, metavar="PREFIX=URL",
                     help="Another backend below PREFIX."),
        click.option("--default", shell_complete=complete_url, metavar="URL",
                     help="What is at the root; a file of its own per mount point if not given."),
    ):  # fmt: skip
        command = option(command)
    return cast("F", command)


def option_of(setting: Field) -> str:
    """Return the option of a setting."""
    return f"--{setting.key.replace('_', '-')}"


def _setting_option(setting: Field) -> Callable[[Any], Any]:
    how: dict[str, Any] = {"metavar": config.metavar(setting)}
    if setting.type is bool:
        how = {"is_flag": True, "default": None}
    elif setting.choices:
        how = {"type": click.Choice(setting.choices)}
    default = config.default_text(setting)
    text = f"{setting.setting.text}{f' [default: {default}]' if default else ''}"
    return click.option(option_of(setting), setting.name, help=text, **how)


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--foreground", is_flag=True, help="Serve in this process, log to standard error, end with Ctrl-C.")
@line_options
def mount(line: MountLine, mountpoint: str | None, foreground: bool) -> None:
    """Mount backends on the empty directory MOUNTPOINT, and return when it answers.

    `fusebackend backends` lists the URLs that can be given.
    """
    if mountpoint is None and line.file.mountpoint is None:
        raise click.UsageError("give a MOUNTPOINT, or a --config file that names one")
    plan = plan_of(line.place(mountpoint), line)
    if make_ready(plan):
        announce([f"the server of an earlier mount on {plan.mountpoint} had died; it was cleared away"])
    _serve(plan, here=foreground)


def _serve(plan: MountPlan, *, here: bool) -> None:
    """Serve a plan until it ends, in this process if that is wanted; or have that begun. What is served is printed."""
    if here:
        # warnings are in its log, which is shown
        serve_here(replace(plan, log=None), lambda _: announce_served(plan, os.getpid()))
    else:
        announce_served(plan, start_server(plan), plan.log)


def start_server(plan: MountPlan, warning: str = "Warning: ") -> int:
    """Start a server in the background, and return its process id when it answers. Its warnings are printed.

    Raises:
        MountError: it could not mount, in its own words.
    """
    pid, warnings = start(plan)
    for each in warnings:
        click.echo(f"{warning}{each}", err=True)
    return pid


def make_ready(plan: MountPlan) -> bool:
    """Check that a plan can be mounted here, and make its data directory.

    Returns:
        True if a dead mount of ours was cleared away first.

    Raises:
        UrlError, ConfigError: a backend, or the log, lies in the mount.
        MountError: this process can't mount anything, or not there.
    """
    _keep_apart(plan)
    try:
        point.check_system(allow_other=plan.settings.allow_other)
    except MountError as error:
        raise MountError(error.errno, f"{error.strerror}; {LOOK}") from None
    _, is_cleared = point.prepare(plan.mountpoint)
    make_data_directory(plan)
    return is_cleared


def plan_of(path: str, line: MountLine) -> MountPlan:
    """Put the file and the command line together; the command line decides if both say something.

    Args:
        path: the mount point, or what stands for it (`config.place_of`).

    Raises:
        UrlError, ConfigError: a URL or a setting is invalid.
    """
    file = line.file
    given = config.by_prefix(map(_split_route, line.routes))
    if line.default is not None:
        given[ROOT] = line.default
    with config.named(line.config_path):
        tables = file.route_tables()
        for prefix in given:
            has = tables.pop(prefix).has if prefix in tables else ""
            if has:
                raise ConfigError(
                    f"route '{prefix}' has {has} there, so its url can't be given on the command line: write it there"
                )
        texts = {prefix: urls.parse(each.text, base=line.base or None).text for prefix, each in tables.items()}
    texts |= {prefix: urls.parse(url).text for prefix, url in given.items()}
    texts.setdefault(ROOT, _own_database(path))
    settings = file.settings.but(
        line.options,
        limits={prefix: each.limits for prefix, each in tables.items()},
        route_rules={prefix: each.rules for prefix, each in tables.items() if each.rules},
        **line.settings,
    )
    return MountPlan(
        mountpoint=path,
        urls=dict(sorted(texts.items())),
        settings=settings,
        log=config.kept_at(path, "log"),
        history=config.kept_at(path, "history") if settings.keeps_history else None,
    )


def _own_database(path: str) -> str:
    """Return the URL of the embedded default of a mount point."""
    return urls.for_path("sqlite", config.kept_at(path, "db")).text


def make_data_directory(plan: MountPlan) -> None:
    """Make the directory of the embedded default, if that is what is mounted."""
    if plan.urls[ROOT] == _own_database(plan.mountpoint):
        xdg.make_directory(os.path.dirname(config.kept_at(plan.mountpoint, "db")), "XDG_DATA_HOME")


def _split_route(route: str) -> tuple[str, str]:
    prefix, equals, url = route.partition("=")
    if not equals or not prefix or not url:
        raise click.UsageError(f"--route '{urls.mask(route)}' is not PREFIX=URL, such as --route /notes=dir:/srv/notes")
    return prefix, url


def _keep_apart(plan: MountPlan) -> None:
    """Refuse a backend that would reach into its own mount: its server would wait for itself, for ever.

    Raises:
        UrlError: a file or directory lies below the mount point, or a directory holds it.
        ConfigError: the log does.
    """
    apart = f"the mount point '{plan.mountpoint}'; choose one outside the other"
    for url in map(urls.parse, plan.urls.values()):
        if url.path is None:
            continue
        real = os.path.realpath(url.path)
        if is_below(real, plan.mountpoint):
            raise UrlError(f"'{url.masked}' lies inside {apart}")
        if is_below(plan.mountpoint, real) and os.path.isdir(real):
            raise UrlError(f"'{url.masked}' holds {apart}")
    for what, path in (("log", plan.log), ("history", plan.history)):
        if path is not None and is_below(os.path.realpath(path), plan.mountpoint):
            raise ConfigError(f"the {what} would be inside the mount: '{path}'; set XDG_STATE_HOME to another place")


def announce_served(plan: MountPlan, pid: int, log: str | None = None) -> None:
    """Print what is mounted, or served without a mount, by which process, and its routes."""
    done = f"mounted {plan.mountpoint}"
    if not plan.is_mounted:
        found = rendezvous.server_of(plan.mountpoint)
        done = f"serving {plan.socket if found is None else found.socket}"
    lines = [f"{done} (process {pid}{', read-only' if plan.settings.read_only else ''})"]
    if log is not None:
        lines.append(f"  log: {log}")
    for prefix, url in plan.urls.items():
        lines.append(f"  {prefix if prefix == '/' else prefix + '/'}  {urls.mask(url)}")
    lines += [f"  view {name}: {place}" for name, place in plan.settings.view_mounts.items()]
    announce(lines)


# -- serve -------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--socket", "socket_path", metavar="PATH", help="Listen here, and not in the runtime directory.")
@click.option("--background", is_flag=True, help="Return when it answers; 'umount' with the socket ends it.")
@line_options
def serve(line: MountLine, socket_path: str | None, background: bool) -> None:
    """Serve backends without a mount, and print the socket: it needs no FUSE, and no privilege.

    Every command of files, snapshots, branches, views and the log works on it, with --mount SOCKET or --mount FILE, the
    configuration; 'fusebackend.connect' takes both as well. Paths are those that agents use. Commands run in the
    default backend, if it runs any.

    It serves until Ctrl-C or SIGTERM. Branches and history are those of the mount point that the configuration names,
    or else of the configuration, or of the URL of the default.
    """
    if line.config_path is not None:
        place = line.place()
    elif line.default is not None:
        url = urls.parse(line.default)
        place = os.path.realpath(url.path) if url.path is not None else "/" + urls.mask(url.text)
    else:
        raise click.UsageError("give --config FILE, or --default URL")
    entry = table.mount_at(place)
    if entry is not None and entry.is_ours:
        raise Failed(f"'{place}' is mounted: that mount has a socket of its own, and --mount {place} uses it")
    address = None if socket_path is None else absolute(socket_path)
    _serve(_unmounted(plan_of(place, line), socket=address), here=not background)


@contextlib.contextmanager
def served_meanwhile(config_path: str) -> Iterator[None]:
    """Have a configuration served without a mount for the length of a block.

    If nothing serves it, a server is started in the background. It ends with the last such block of any process, also
    if that process was killed.

    Raises:
        ConfigError, UrlError, MountError: as `serve`.
    """
    line = MountLine(config_path=config_path)
    place = line.place()
    with rendezvous.session(place) as sessions:
        if rendezvous.server_of(place) is None:
            plan = _unmounted(plan_of(place, line), sessions=sessions)
            try:
                start_server(plan)
            except MountError:
                if rendezvous.server_of(place) is None:  # else another process has started one just now
                    raise
        yield


def _unmounted(plan: MountPlan, **others: str | None) -> MountPlan:
    for name, mountpoint in plan.settings.view_mounts.items():
        click.echo(f"Warning: view '{name}' is not on '{mountpoint}': nothing is mounted", err=True)
    make_data_directory(plan)
    return replace(plan, is_mounted=False, settings=replace(plan.settings, view_mounts={}), **others)
