"""`fusebackend mount`: make a plan of the command line and the file, check it, and start a server with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from fusebackend import config
from fusebackend.base import xdg
from fusebackend.base.paths import ROOT
from fusebackend.cli.show import announce
from fusebackend.cli.target import complete_route, complete_url, complete_words
from fusebackend.config import ConfigError, ConfigFile, MountPlan, RouteTable
from fusebackend.linux import mount_point as point
from fusebackend.linux import mount_table as table
from fusebackend.linux.mount_table import MountError
from fusebackend.protocol import DEFAULT_TTL_S
from fusebackend.urls import opening as urls
from fusebackend.urls.opening import Url, UrlError
from fusebackend.vfs.calls.route_limits import DEFAULT_DEADLINE_S

LOOK = "'fusebackend doctor' looks at all that a mount needs, and 'fusebackend serve' does without one"

F = TypeVar("F", bound=Callable[..., Any])


def plan_options(function: F) -> F:
    """The options of which `plan_of` makes a plan, but for `-o`."""
    default = "What is at the root; a file of its own per mount point if not given."
    from_file = "Read all this from a TOML file; the command line wins."
    for option in (
        click.option("--read-only", is_flag=True, help="Nothing can be changed."),
        click.option("--config", "config_path", metavar="FILE", help=from_file),
        click.option("--route", "routes", multiple=True, shell_complete=complete_route, metavar="PREFIX=URL",
                     help="Another backend below PREFIX."),
        click.option("--default", shell_complete=complete_url, metavar="URL", help=default),
    ):  # fmt: skip
        function = option(function)
    return function


def word_options(function: F) -> F:
    """`-o`."""
    known = ", ".join((*config.OWN_WORDS, *config.LIBFUSE_WORDS))
    return click.option("-o", "options", multiple=True, shell_complete=complete_words, metavar="OPTION",
                        help=f"Words with commas between: {known}.")(function)  # fmt: skip


@click.command()
@click.argument("mountpoint", required=False)
@plan_options
@click.option("--foreground", is_flag=True, help="Serve in this process, log to standard error, end with Ctrl-C.")
@word_options
def mount(
    mountpoint: str | None,
    default: str | None,
    routes: Sequence[str],
    config_path: str | None,
    read_only: bool,
    foreground: bool,
    options: Sequence[str],
) -> None:
    """Mount backends on the empty directory MOUNTPOINT, and return when it answers.

    `fusebackend backends` lists the URLs that can be given.
    """
    file = config.read_file(config_path) if config_path else ConfigFile()
    if mountpoint is None:
        if file.mountpoint is None:
            raise click.UsageError("give a MOUNTPOINT, or a --config file that names one")
        mountpoint = os.path.join(_base(config_path) or "", os.path.expanduser(file.mountpoint))
    path = table.resolve(mountpoint)
    plan = plan_of(path, file, config_path, default, routes, read_only, options)
    if make_ready(plan):
        announce([f"the server of an earlier mount on {path} had died; it was cleared away"])
    make_data_directory(default, file, path)
    if foreground:
        from fusebackend.cli.serve import serve

        # warnings are in its log, which is shown
        serve(plan, lambda _: announce_mounted(plan, os.getpid()), log_file=None)
    else:
        from fusebackend.cli.start import start

        pid, warnings = start(plan)
        announce_mounted(plan, pid, plan.log)
        for line in warnings:
            click.echo(f"Warning: {line}", err=True)


def make_ready(plan: MountPlan) -> bool:
    """Check that a plan can be mounted here. Returns True if a dead mount of ours was cleared away first.

    Raises:
        UrlError, ConfigError: a backend, or the log, lies in the mount.
        MountError: this process can't mount anything, or not there.
    """
    _keep_apart(plan)
    try:
        point.check_system(allow_other=plan.allow_other)
    except MountError as error:
        raise MountError(error.errno, f"{error.strerror}; {LOOK}") from None
    return point.prepare(plan.mountpoint).replaced_dead


def make_data_directory(default: str | None, file: ConfigFile, path: str) -> None:
    """Make the directory of the embedded default of a mount point, if it is what is mounted."""
    if default is None and file.default is None:
        xdg.make_directory(os.path.dirname(config.data_file(path)), "XDG_DATA_HOME")


def _base(config_path: str | None) -> str | None:
    """The directory that relative paths in the file start from."""
    return os.path.dirname(os.path.abspath(config_path)) if config_path else None


def plan_of(
    path: str,
    file: ConfigFile,
    config_path: str | None,
    default: str | None,
    routes: Sequence[str],
    read_only: bool,
    options: Sequence[str],
) -> MountPlan:
    """Put the file and the command line together; the command line decides if both are given.

    Args:
        path: the mount point, or what stands for it (`config.place_of`).
    """
    base = _base(config_path)
    words = config.parse_words([*file.options, *options])
    given = config.routes_by_prefix([_split_route(route) for route in routes])
    with _named(config_path):
        from_file = config.routes_by_prefix(file.routes.items())
        ttl_s = config.meant("ttl", config.duration_s, file.ttl)
        deadline_s = config.meant("deadline", config.deadline_s, file.deadline)
        execute = config.shell_options(file.execute)
        in_file = config.trees_options(file.trees, file.trees_name)
        takes_snapshots = config.takes_snapshots(file.snapshots or "auto")
        keeps_history = config.keeps_history(file.history or "on")
        log_options = config.log_options(file.log)
        approvals = config.approval_options(file.approvals)
        metrics = config.metrics_options(file.metrics)
    said = {prefix: table for prefix, table in from_file.items() if prefix not in given}
    with _named(config_path):
        for prefix in given:
            _keep_rules(prefix, from_file.get(prefix, ""))
        if default is not None:
            _keep_rules(ROOT, file.default or "")
        in_file_urls = {prefix: config.url_of(table) for prefix, table in said.items()}
        default_url = config.url_of(file.default or "")
        texts: dict[str, str] = {prefix: urls.parse(url, base=base).text for prefix, url in in_file_urls.items()}
    texts.update({prefix: urls.parse(url).text for prefix, url in given.items()})
    if default is not None:
        root = urls.parse(default)
    elif file.default is not None:
        with _named(config_path):
            root = urls.parse(default_url, base=base)
        said[ROOT] = file.default
    else:
        root = urls.for_path("sqlite", config.data_file(path))
    with _named(config_path):
        limits = {prefix: config.limits_of(prefix, table) for prefix, table in said.items()}
        rules = {prefix: config.route_rules_of(prefix, table) for prefix, table in said.items()}
        views = config.views_of(file)
    keeps_history = config.keeps_history(words.history) if words.history else keeps_history
    is_read_only = read_only or (file.read_only if words.read_only is None else words.read_only)
    return MountPlan(
        mountpoint=path,
        default=root.text,
        routes=texts,
        read_only=is_read_only,
        allow_other=bool(file.allow_other or words.allow_other),
        ttl_s=_first(words.ttl_s, ttl_s, DEFAULT_TTL_S),
        deadline_s=_first(words.deadline_s, deadline_s, DEFAULT_DEADLINE_S),
        limits=limits,
        may_keep_awake=words.may_keep_awake,
        words=words.libfuse,
        log=config.log_file(path),
        execute=execute,
        trees=config.trees_options(words.trees or in_file.shown, words.trees_name or in_file.name),
        takes_snapshots=config.takes_snapshots(words.snapshots) if words.snapshots else takes_snapshots,
        history=config.history_directory(path) if keeps_history and not is_read_only else None,
        route_rules={prefix: own for prefix, own in rules.items() if own},
        views=views,
        view_mounts={
            name: os.path.abspath(os.path.join(base or "", os.path.expanduser(view.mount)))
            for name, view in file.views.items()
            if view.mount is not None
        },
        default_view=file.default_view,
        log_options=log_options,
        approvals=approvals,
        metrics=metrics,
    )


def _keep_rules(prefix: str, said: str | RouteTable) -> None:
    """Raises `ConfigError` where the command line would replace a route together with its rules or limits."""
    if isinstance(said, str):
        return
    what = "rules" if config.route_rules_of(prefix, said) else "limits" if said.is_limited else ""
    if what:
        raise ConfigError(
            f"route '{prefix}' has {what} there, so its url can't be given on the command line: write it there"
        )


def _first(*said: float | None) -> float:
    """The first of these that was said at all; the last one is the default."""
    return next(value for value in said if value is not None)


@contextlib.contextmanager
def _named(config_path: str | None) -> Iterator[None]:
    """Name the file in the error of a value that it holds."""
    try:
        yield
    except (ConfigError, UrlError) as error:
        raise type(error)(f"'{config_path}': {error}") from None


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
    for url in map(urls.parse, plan.urls().values()):
        if url.path is not None:
            _keep_url_apart(url, url.path, plan.mountpoint)
    for what, path in (("log", plan.log), ("history", plan.history)):
        if path is not None and _is_inside(os.path.realpath(path), plan.mountpoint):
            raise ConfigError(f"the {what} would be inside the mount: '{path}'; set XDG_STATE_HOME to another place")


def _keep_url_apart(url: Url, path: str, mountpoint: str) -> None:
    real = os.path.realpath(path)
    if _is_inside(real, mountpoint):
        raise UrlError(f"'{url.masked}' lies inside the mount point '{mountpoint}'; choose one outside the other")
    if _is_inside(mountpoint, real) and os.path.isdir(real):
        raise UrlError(f"'{url.masked}' holds the mount point '{mountpoint}'; choose one outside the other")


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def announce_mounted(plan: MountPlan, pid: int, log: str | None = None) -> None:
    """Print what is mounted, by which process, and its routes."""
    lines = [f"mounted {plan.mountpoint} (process {pid}{', read-only' if plan.read_only else ''})"]
    announce([*lines, *route_lines(plan, log)])


def route_lines(plan: MountPlan, log: str | None) -> list[str]:
    """Return the log and the routes of a plan, a line each, for people."""
    lines = [] if log is None else [f"  log: {log}"]
    for prefix, url in plan.urls().items():
        lines.append(f"  {prefix if prefix == '/' else prefix + '/'}  {urls.mask(url)}")
    lines += [f"  view {name}: {place}" for name, place in plan.view_mounts.items()]
    return lines
