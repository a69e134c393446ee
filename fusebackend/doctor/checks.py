"""The table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fusebackend.config import MountPlan
from fusebackend.doctor import commands, fuse, namespaces, packages, places, routes
from fusebackend.doctor.finding import Check, Finding, found_by
from fusebackend.urls import opening as urls


def _checks(plan: MountPlan | None) -> Iterator[tuple[str, Check]]:
    """What is looked at, and by which check."""
    yield fuse.DEVICE, fuse.device
    yield "libfuse3", fuse.library
    yield "fusermount3", fuse.fusermount
    yield "allow_other", fuse.allow_other
    yield "mount(2)", fuse.mounting
    yield "user namespaces", namespaces.user_namespaces
    yield "AppArmor and seccomp", namespaces.confinement
    yield "propagation", partial(namespaces.propagation, None if plan is None else plan.mountpoint)
    yield "bubblewrap", partial(commands.sandbox, plan is None or plan.execute.sandbox != "none")
    yield "control groups", commands.limits
    yield "programs", commands.programs
    yield "locale", places.locale
    yield "directories", places.directories
    yield "extras", packages.extras
    if plan is not None:
        for prefix, text in plan.urls().items():
            url = urls.parse(text)
            yield f"route {prefix} ({url.masked})", partial(routes.route, prefix, url)


def diagnose(plan: MountPlan | None) -> Iterator[Finding]:
    """Yield what all checks find, in their order.

    Args:
        plan: what is to be mounted; its routes are looked at as well. None for this machine alone.
    """
    for what, check in _checks(plan):
        yield from found_by(what, check)
