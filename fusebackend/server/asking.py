"""`InterruptedVerbs`: makes a request of a verb that a view interrupts, and makes what was approved.

A verb is made in its view first. Where it is refused by a rule of mode `interrupt`, its arguments become a request
(`approvals.py`). Once approved, they are made through the same view with an approval (`View.granting`) for the paths
that the verb names, or to which their links lead; of a verb that takes whole trees, for what is in these. All other
rules hold.

A request has a stamp of what was at its paths, and what has another one was changed since: then nothing is made. The
comparison is just before the change; one by the kernel in between is not excluded.
"""

from __future__ import annotations

import contextvars
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from fusebackend.base import git_patch, paths
from fusebackend.base.errors import VANISHED
from fusebackend.base.git_patch import Side
from fusebackend.base.paths import AgentPath, PathError, to_name
from fusebackend.base.shown import name_shown
from fusebackend.history.requests import Asked, Request, digest, new_key, unpacked
from fusebackend.linux.command import REFUSED, Command
from fusebackend.protocol import (
    READING,
    SERVED,
    Actor,
    Attr,
    Conditions,
    ExecuteResponse,
    Volume,
    current_actor,
)
from fusebackend.rules.rule import Operation
from fusebackend.server.approvals import MAX_CHANGE_BYTES, Approvals, CanNotAsk, CanNotBeMade, said
from fusebackend.server.rules import Views
from fusebackend.volumes.placing import NodeSource, whole
from fusebackend.volumes.walk import below, resolve

if TYPE_CHECKING:
    from fusebackend.vfs.junctions import MountTree

COMPARED_BYTES: Final = 4 << 20
"""Larger files are compared by size and time of change."""

COMPARED_ENTRIES: Final = 10_000
"""In a directory that a request removes or moves. With more, there can be no request."""

SHOWN_BYTES: Final = 1 << 20
"""Of a change that is shown, and of the file before it."""

LISTED: Final = 1000
"""Names below a directory that is to be deleted, of those that are shown."""

KEPT_OUTPUT: Final = 64 << 10
"""Characters of the output of a command that was started by an approval."""

R = TypeVar("R")


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of a verb, without its paths."""

    content: str | None = None
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    if_version: str | None = None
    if_absent: bool = False
    contents: list[bytes] = []
    conditions: list[Conditions] = []
    """Of `upload_files`, one for each path."""
    command: str | None = None
    timeout_s: float | None = None
    stdin: bytes | None = None
    offset: int = 0
    limit: int = 0
    """Of `read`."""


class InterruptedVerbs:
    """See the module's docstring. Any thread.

    Args:
        approvals: has the requests.
        views: of the mount.
        tree: of the mount.
    """

    def __init__(self, approvals: Approvals, views: Views, tree: MountTree) -> None:
        self.approvals = approvals
        self._views = views
        self._tree = tree
        self._server = Actor(uid=os.geteuid(), pid=os.getpid())

    def where(self, view: str | None, named: Sequence[str]) -> tuple[str, list[AgentPath]] | None:
        """Return the view of a verb, and its paths there; None if nothing of it can need an approval.

        Args:
            view: that the client has chosen; None for one that names paths of views.
        """
        found = []
        names = set()
        for path in named:
            name, inside = (view, path) if view is not None else self._views.split(path)
            names.add(name)
            try:
                found.append(paths.normalise(inside))
            except PathError:
                return None
        if len(names) != 1 or (name := names.pop()) is None or not self._views.find(name).interrupts:
            return None
        return name, found

    def may_ask(self, view: str, verb: str, path: AgentPath) -> bool:
        """Return False for a path that no approval can let a verb change, or read."""
        operation: Operation = "read" if verb in READING else "write"
        return self._views.seen(view).shown.decide(operation, path) not in ("deny", "hide")

    def recall(
        self, view: str, named: list[AgentPath], verb: str, change: Callable[[], Change]
    ) -> tuple[Any, str | None]:
        """Return what `ask` has for a verb that its tool call has made before, and that was decided since; else twice
        None. Made again, it would find its own change."""
        actor = current_actor(self._server)
        if not actor.call:
            return None, None
        request = self.approvals.decided(Asked(0, 0, actor, view, verb, list(named), [], "", []), change())
        return (None, None) if request is None else self._answer(request, f"'{named[0]}'")

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(self, view: str, verb: str, named: list[AgentPath], change: Change) -> tuple[Any, str | None]:
        """Have a verb wait that was refused.

        Args:
            named: its paths in the view.

        Returns:
            The answer of the verb, if it was made, else None, of one that only reads what makes it (`face`); and why
            there is none: None where it can't be asked for, since another rule denies it.
        """
        if not all(self.may_ask(view, verb, path) for path in named):
            return None, None
        title = f"{verb} {' '.join(map(_titled, named))}"
        return self._ask(f"'{named[0]}'", partial(self._asked, view, verb, named, title, change))

    def before_command(self, view: str, command: Command, run: Callable[[], ExecuteResponse]) -> ExecuteResponse:
        """Start a command, if the rules of its view allow that.

        Args:
            view: that binds it.
            command: its `cwd` is a path of the view.
            run: starts it.
        """
        try:
            cwd = paths.normalise(command.cwd)
        except PathError:
            return run()  # which says why it is none
        mode = self._views.seen(view).shown.decide("execute", cwd)
        if mode not in ("deny", "interrupt"):
            return run()
        if mode == "deny":
            refusal = f"view '{view}' denies commands that start in '{cwd}'"
            return ExecuteResponse(output=f"Error: {refusal}", exit_code=REFUSED)
        change = Change(command=command.text, timeout_s=command.timeout_s, stdin=command.stdin)
        title = f"execute {self.approvals.in_a_line(command.text)}"
        begin = partial(contextvars.copy_context().run, run)  # as its caller, who may still be cancelled
        answer, why = self._ask("a command", partial(self._asked, view, "execute", [cwd], title, change, begin))
        ran: ExecuteResponse = answer or ExecuteResponse(output=f"Error: {why}", exit_code=REFUSED)
        return ran

    def _ask(self, shown: str, asked: Callable[[], Request]) -> tuple[Any, str | None]:
        """Return what `ask` does. `shown` is what would be changed, `asked` makes the request."""
        try:
            return self._answer(asked(), shown)
        except CanNotAsk as error:
            return None, f"{shown} needs an approval, and can't be asked for: {error}"
        except CanNotBeMade as error:
            return None, f"{shown} needs an approval: it was approved, and could not be read: {error}"

    def _asked(
        self,
        view: str,
        verb: str,
        named: list[AgentPath],
        title: str,
        change: Change,
        begin: Callable[[], Any] | None = None,
    ) -> Request:
        """Return the request for a verb, as it is when its caller need not wait any more. CanNotAsk."""
        key = new_key()
        time_ns = time.time_ns()
        expires_ns = time_ns + int(self.approvals.options.expire_s * 1e9)
        size = sum(map(len, change.contents)) + len(change.content or "")
        if size > MAX_CHANGE_BYTES:
            raise CanNotAsk(f"a request keeps at most {MAX_CHANGE_BYTES >> 10} KiB of a change")
        stamps = [] if verb == "execute" else [self._stamp(verb, path, key) for path in named]
        granted = [self._leads_to(verb, path) for path in named] if stamps else []
        for path, place in zip(named, granted, strict=bool(stamps)):
            if place != path:  # the approver must know
                title += f" ({_titled(path)} leads to {_titled(place)})"
        actor = current_actor(self._server)
        asked = Asked(time_ns, expires_ns, actor, view, verb, list(named), list[str](granted), title, stamps)
        return self.approvals.ask(asked, change, key, begin)

    def _answer(self, request: Request, shown: str) -> tuple[Any, str | None]:
        """Return the answer of a verb, or why there is none. `shown` is what it would change. CanNotBeMade."""
        verb = request.asked.verb
        if request.state == "made" and verb in READING:
            return self.face(request), None
        if request.state in ("made", "failed") and request.became.answer:
            return unpacked(SERVED[verb].signature.return_annotation, request.became.answer), None
        number = request.number
        if request.state == "pending":
            how = f"'fusebackend approval approve {number}' has it happen, 'approval show {number}' shows it"
            return None, f"{shown} needs an approval: it is request {number}; {how}"
        return None, f"{shown} needs an approval: request {number}: {said(request)}"

    # -- making ------------------------------------------------------------------------------------------------

    def arguments(self, request: Request) -> Change:
        """Return the arguments of a request. CanNotBeMade: they were forgotten."""
        if request.change is None:
            raise CanNotBeMade("its change was forgotten")
        return unpacked(Change, request.change)

    def face(self, request: Request) -> Any:
        """Return what makes the verb of a request, after a comparison with what it was asked for.

        Raises:
            CanNotBeMade: something was changed since, or the mount has no such view any more.
        """
        asked = request.asked
        for path, stamp in zip(asked.paths, asked.stamps, strict=True):
            try:
                now = self._stamp(asked.verb, AgentPath(path), request.key)
            except CanNotAsk as error:
                raise CanNotBeMade(str(error)) from None
            if now != stamp:
                raise CanNotBeMade(
                    f"'{path}' {_difference(stamp, now)} since it was asked for; have it asked for again"
                )
        try:
            granted = [AgentPath(path) for path in asked.granted]
            return self._views.granting(asked.view, granted, trees=asked.verb in ("delete", "move"))
        except OSError as error:
            raise CanNotBeMade(str(error.strerror)) from None

    def _stamp(self, verb: str, path: AgentPath, key: bytes) -> str:
        """Return what is at a path. CanNotAsk: it can't be compared."""
        try:
            return self._look(path, partial(_stamped, follow=_follows(verb), key=key))
        except OSError as error:
            if error.errno in VANISHED:
                return ABSENT
            raise CanNotAsk(f"'{path}' can't be looked at: {error.strerror}") from None

    def _look(self, path: AgentPath, look: Callable[[Volume, str], R]) -> R:
        """Return what `look` finds, given the volume of a path and the path there."""
        route = self._tree.route_of(path)
        return route.executor.run("stat", partial(look, route.volume, route.inner(path)))

    def _leads_to(self, verb: str, path: AgentPath) -> AgentPath:
        """Return where symbolic links of a path lead; the path itself without any."""
        route = self._tree.route_of(path)
        inner = route.inner(path)
        try:
            place = route.executor.run("stat", partial(resolve, route.volume, inner, follow=_follows(verb)))
        except OSError:
            return path
        return path if place.path == inner else paths.join(route.prefix, place.path.strip("/"))

    # -- showing -----------------------------------------------------------------------------------------------

    def shown(self, request: Request) -> str:
        """Return the change of a request as text: a patch against the file as it is now, where it can be one. Once it
        is decided, what was asked is compared with nothing."""
        if request.change is None:
            return ""
        change = unpacked(Change, request.change)
        asked = request.asked
        if asked.verb == "execute":
            given = "" if not change.stdin else f"standard input:\n{change.stdin.decode('utf-8', 'replace')}"
            return f"{change.command}\n{given}"
        if asked.verb in READING:
            return f"read {asked.title.partition(' ')[2]}\n"
        if asked.verb == "move":
            old, new = (git_patch.quoted(to_name(path)) for path in asked.paths)
            return f"rename from {old}\nrename to {new}\n"
        pieces: list[bytes] = []
        for index, path in enumerate(asked.paths):
            look = partial(_data, follow=asked.verb != "delete")
            data = self._look_if_possible(AgentPath(path), look) if request.state == "pending" else None
            if asked.verb == "delete" and data is None:
                names = [b"", *(self._look_if_possible(AgentPath(path), _listed) or ())]
                pieces += [f"delete {git_patch.quoted(to_name(path) + name)}\n".encode() for name in names]
                continue
            before, after = _sides(asked.verb, change, index, data)
            pieces += git_patch.file_patch(to_name(path).lstrip(b"/"), before, after)
        return b"".join(pieces).decode("utf-8", "replace")

    def _look_if_possible(self, path: AgentPath, look: Callable[[Volume, str], R | None]) -> R | None:
        """Do `_look`; None where that fails."""
        try:
            return self._look(path, look)
        except OSError:
            return None


ABSENT: Final = "absent"


LED: Final = "led to "
"""Begins the stamp of a path that has symbolic links. Where nothing is yet, only this tells two targets apart."""


def _titled(path: str) -> str:
    """Return a path for the title of a request, which a name can't make look like that of another one."""
    shown = name_shown(path)
    return f"'{shown}'" if " " in shown or "'" in shown else shown


def _difference(before: str, now: str) -> str:
    """Return what has become of a path, in words."""
    if LED in before or LED in now:
        return "was changed, or leads elsewhere,"
    if now == ABSENT:
        return "has gone"
    return "was made" if before == ABSENT else "was changed"


def _follows(verb: str) -> bool:
    """Whether a verb follows a symbolic link that its path is."""
    return verb in ("write", "edit", "upload_files", *READING)


def _stamped(volume: Volume, inner: str, follow: bool, key: bytes) -> str:
    place = resolve(volume, inner, follow=follow)
    led = "" if place.path == inner else f"{LED}{digest(key, place.path.encode('utf-8', 'surrogatepass')).hex()} "
    return led + _found(volume, place.attr, key)


def _found(volume: Volume, attr: Attr | None, key: bytes) -> str:
    if attr is None:
        return ABSENT
    if attr.is_dir:
        return f"directory {digest(key, *_names(volume, attr)).hex()}"
    kind = stat.S_IFMT(attr.mode)
    if stat.S_ISLNK(attr.mode):
        return f"{kind:o} {digest(key, volume.readlink(attr.node)).hex()}"
    if not stat.S_ISREG(attr.mode) or attr.size > COMPARED_BYTES:
        return f"{kind:o} {attr.size} {attr.mtime_ns}"
    return f"{kind:o} {attr.size} {digest(key, whole(NodeSource(volume, attr.node))).hex()}"


def _names(volume: Volume, directory: Attr) -> Iterator[bytes]:
    """Yield what is in a directory, at any depth: names, sizes and times."""
    for count, (path, attr) in enumerate(below(volume, directory.node), 1):
        if count > COMPARED_ENTRIES:
            raise CanNotAsk(f"it is a directory with more than {COMPARED_ENTRIES} names")
        size, time_ns = (0, 0) if attr.is_dir else (attr.size, attr.mtime_ns)
        yield f"{attr.mode:o} {size} {time_ns} ".encode() + path + b"\n"


def _sides(verb: str, change: Change, index: int, data: bytes | None) -> tuple[Side | None, Side | None]:
    """Return a file before and after a change. `data` are its bytes; None if it has none, or they are not known."""
    before = None if data is None else Side(data)
    if verb == "write":
        return before, Side((change.content or "").encode("utf-8", "surrogatepass"))
    if verb == "upload_files":
        return before, Side(change.contents[index])
    if verb == "delete":
        return before, None
    old, new = ((each or "").encode("utf-8", "surrogatepass") for each in (change.old_string, change.new_string))
    if data is None:
        return Side(old), Side(new)
    return before, Side(data.replace(old, new, -1 if change.replace_all else 1) if old else data)


def _listed(volume: Volume, inner: str) -> list[bytes]:
    """Names below a directory, not too many of them."""
    attr = resolve(volume, inner, follow=False).attr
    found = []
    for path, _ in below(volume, attr.node) if attr is not None and attr.is_dir else ():
        found.append(path)
        if len(found) == LISTED:
            found.append(b"/...")
            break
    return found


def _data(volume: Volume, inner: str, follow: bool) -> bytes | None:
    """The bytes of a file; None if there is none, or it is too large to be shown."""
    attr = resolve(volume, inner, follow=follow).attr
    if attr is None or not stat.S_ISREG(attr.mode) or attr.size > SHOWN_BYTES:
        return None
    return whole(NodeSource(volume, attr.node))
