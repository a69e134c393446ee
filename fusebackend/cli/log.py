"""`fusebackend log`: the calls that changed a mount: who, when, what, and how much.

`fusebackend blame`: which of them left each line of a file as it is.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import click

from fusebackend.base.errors import unless
from fusebackend.base.paths import AgentPath, is_below
from fusebackend.cli import target
from fusebackend.cli.show import Failed, Output, json_option, local_time, padded, user_name
from fusebackend.cli.target import Target, complete_path, completing, mount_option, or_path
from fusebackend.control.following import POLLED_S, until_end
from fusebackend.history.records import is_call_name
from fusebackend.protocol import Actor, BlamedLine, BlameResult, CallInfo, ChangeInfo
from fusebackend.trees.refs import RefError, begin_ns

SHOWN = 20
"""Calls, unless -n asks for another number."""

COMPLETED = 100
"""Calls among which names are completed."""

WHO_COLUMNS = 24
"""A longer name of an actor is cut in the middle of a table."""

PAGE = 1000
"""Changes that one question asks for."""


complete_call = completing(lambda files: [(each.call, each.title) for each in files.log(limit=COMPLETED)])
"""Complete the name of a call; its title is the help."""


@click.command()
@click.argument("words", nargs=-1, shell_complete=or_path(complete_call), metavar="[CALL | PATH]...")
@click.option("--by", metavar="ACTOR", help="Calls of this agent, thread, tool call, program or user id.")
@click.option(
    "--since", metavar="TIME", help="Calls since then: 10m, 2h, 14:05, yesterday (its begin), 2026-11-22T14:05."
)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="So many at most.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on with each when it ends, until Ctrl-C or the mount's end; with --changes, with these as they come.",
)
@click.option("--changes", "with_changes", is_flag=True, help="Also what each of them changed, a line each.")
@click.option("--branch", metavar="NAME", help="The calls in this branch; a PATH is one of the branch, as '/plan.md'.")
@click.option("--verify", "is_check", is_flag=True, help="Check by its hash chain that the log is as it was written.")
@json_option("a line for each call, newest first; with --changes it has `changes`, with -f each change has a line.")
@mount_option
def log(
    words: Sequence[str],
    by: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    with_changes: bool,
    branch: str | None,
    is_check: bool,
    output: Output,
    mount: str | None,
) -> None:
    """Show the calls that changed files, the newest first: name, begin, actor, number of changes, what it was.

    A call is what one actor did in one go: a verb, a command with all of its processes, a tool call, or what a process
    session did until it was quiet for 2 s. With a PATH, only those that changed something at it or below it.

    'fusebackend diff c42' shows what the call c42 did, 'fusebackend undo c42' takes it back.

    With --branch, the calls that changed something in a branch, and not those of the mount.

    --verify exits with 1 if something was changed, removed or added past the server. It proves nothing against the
    server's own user, who can write the log anew.
    """
    if is_check:
        if words or by or since or follow or with_changes or branch:
            text = "--verify checks the whole log: give no CALL, PATH, --by, --since, -f, --changes or --branch with it"
            raise click.UsageError(text)
        _verify(target.here(mount), output)
        return
    if branch is not None and follow:
        raise click.UsageError("-f follows the calls of the mount: give no --branch with it")
    calls = [word for word in words if is_call_name(word)]
    given = [word for word in words if not is_call_name(word)]
    if calls and (given or by or since or follow or branch is not None):
        raise click.UsageError("a CALL is shown as it is: give no PATH, --by, --since, -f or --branch with it")
    place, paths = target.together(given if branch is None else (), mount)
    named = paths if branch is None else given
    asked = _AskedCalls(output, place, by, _since_ns(since), named, limit, branch, with_changes)
    if follow:
        until_end(asked.follow, place.files.has_ended)
    else:
        found = place.files.log(calls) if calls else asked.calls()
        asked.show(found)
        if not found:
            there = " there" if named or branch is not None else ""
            output.note(f"no call has changed anything{there}")


def _verify(place: Target, output: Output) -> None:
    found = place.files.verify_log()
    output.document(asdict(found))
    output.lines(map(output.told, found.problems or ["the log is as it was written"]))
    if found.problems:
        click.get_current_context().exit(1)


def _since_ns(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return begin_ns(text)
    except RefError as error:
        raise Failed(f"--since: {error}") from None


class _AskedCalls(NamedTuple):
    """The calls that are asked for, and how they are printed.

    Attributes:
        place: a path of the mount, in whose words paths are shown.
        by, since_ns, paths, limit: which calls, as of the verb `log`.
        branch: whose calls they are, with paths inside of it; None for the mount's.
        with_changes: print also what each of them changed.
    """

    output: Output
    place: Target
    by: str | None
    since_ns: int | None
    paths: list[Any]
    limit: int
    branch: str | None
    with_changes: bool

    def calls(self) -> list[CallInfo]:
        """Return the calls, the newest first."""
        return self.place.files.log(
            by=self.by, since=self.since_ns, paths=self.paths, limit=self.limit, branch=self.branch
        )

    def follow(self) -> None:
        """Show the calls that have ended, then each when it ends; with changes, these as they come."""
        files = self.place.files
        number = max((each.number for each in files.changes(after=-1)), default=0)
        begin_ns = time.time_ns()
        ended = [each for each in reversed(self.calls()) if each.ended_ns is not None and each.ended_ns <= begin_ns]
        self.show(ended)
        self.output.flush()
        if self.with_changes:
            self._follow_changes(number, {each.call for each in ended})
        for each in files.follow_log(by=self.by, paths=self.paths, since=begin_ns):
            self.show([each])
            self.output.flush()

    def _follow_changes(self, number: int, done: set[str]) -> NoReturn:
        """Show the changes after one, but those of calls that are done. Ends with an error, as when the mount ends."""
        files = self.place.files
        calls: dict[str, CallInfo] = {}
        while True:
            found = files.changes(after=number, limit=PAGE)
            named = {change.call for change in found}
            # ENOENT: it has been deleted, or its only change was not made.
            new = [each for name in named - calls.keys() for each in unless({errno.ENOENT}, files.log, [name]) or ()]
            calls = {name: call for name, call in calls.items() if name in named} | {call.call: call for call in new}
            for change in found:
                call = calls.get(change.call)
                if call is not None and call.call not in done and self._has(call, change):
                    self._show_change(call, change)
            number = found[-1].number if found else number
            self.output.flush()
            if len(found) < PAGE:
                time.sleep(POLLED_S)

    def _has(self, call: CallInfo, change: ChangeInfo) -> bool:
        """Return True for a change at or below the paths, by an actor whose calls are asked for (`Filter.by`)."""
        named = [AgentPath(each) for each in (change.path, change.to_path) if each is not None]
        is_there = not self.paths or any(is_below(each, path) for each in named for path in self.paths)
        return is_there and (self.by is None or call.actor.is_meant(self.by))

    def _shown(self, path: str) -> str:
        return path if self.branch is not None else self.place.shown(path)

    def show(self, calls: Sequence[CallInfo]) -> None:
        """Print calls."""
        if self.output.json:
            for each in calls:
                value = asdict(each)
                if self.with_changes:
                    value["changes"] = [self._shown_paths(asdict(change)) for change in self._changes(each)]
                self.output.record(value)
            return
        heads = padded([(each.call, moment(each.began_ns), self._who(each)) for each in calls])
        number_width = max((len(str(each.changes)) for each in calls), default=0)
        columns = shutil.get_terminal_size().columns if self.output.terminal else None
        for head, each in zip(heads, calls, strict=True):
            self.output.line(_line(self.output, head, each, number_width, columns))
            if self.with_changes:
                for change in self._changes(each):
                    self.output.line(self.output.row(f"    {self._change(change)}"))

    def _show_change(self, call: CallInfo, change: ChangeInfo) -> None:
        """Print a change as it comes, and whose it is."""
        self.output.record(self._shown_paths(asdict(change)))
        head = f"{moment(change.time_ns)}  {call.call:<5}  {self._who(call):<12}"
        self.output.line(self.output.row(f"{head}  {self._change(change)}"))

    def _who(self, call: CallInfo) -> str:
        return _cut(self.output.told(who(call.actor)), WHO_COLUMNS)

    def _changes(self, call: CallInfo) -> Iterator[ChangeInfo]:
        after = 0
        while found := self.place.files.changes(call.call, after=after, limit=PAGE, branch=self.branch):
            yield from found
            after = found[-1].number

    def _shown_paths(self, change: dict[str, Any]) -> dict[str, Any]:
        for name in ("path", "to_path"):
            if change[name] is not None:
                change[name] = self._shown(change[name])
        return change

    def _change(self, change: ChangeInfo) -> str:
        path = self.output.told(self._shown(change.path))
        if change.to_path is not None:
            arrow = "<->" if change.change == "exchange" else "->"
            path = f"{path} {arrow} {self.output.told(self._shown(change.to_path))}"
        line = f"{change.change:<10} {path}"
        if change.kept == "lost":
            line += f"  (its bytes are lost: {self.output.told(change.why_lost or 'no reason is known')})"
        return line


def _line(output: Output, head: str, call: CallInfo, number_width: int, columns: int | None) -> str:
    """Return the line of a call in the table; the column of titles takes what the others leave of the terminal."""
    end = ""
    if call.undone_by is not None:
        end = f"  undone by {call.undone_by}"
    elif call.ended_ns is None:
        end = "  going on"
    title = output.told(call.title)
    if call.undoes and call.kind == "undo":
        title = f"undo {' '.join(call.undoes)}"
    tail = f"{call.changes:>{number_width}}{end}"
    if columns is None:
        return f"{head}  {tail}  {title}"
    room = max(columns - len(head) - len(tail) - 4, 10)
    what = _cut(title, room)
    painted = what if call.undone_by is None else output.paint(what, "bright_black")
    return f"{head}  {painted}{' ' * (room - len(what))}  {tail}"


def who(actor: Actor) -> str:
    """Return one word for an actor: the agent, the thread, the program, or the user."""
    if actor.word:
        return actor.word
    return "?" if actor.uid is None else user_name(actor.uid)


def moment(time_ns: int) -> str:
    """Return a local time: of today without the day."""
    return local_time(time_ns // 10**9).removeprefix(f"{datetime.now():%Y-%m-%d} ")


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "…"


# -- blame -------------------------------------------------------------------------------------------------------


CANDIDATES = 3
"""Calls that a line names, at most."""

OTHERS = "-"
"""For a change that the log does not have."""


@click.command()
@click.argument("path", shell_complete=complete_path)
@click.option("--branch", metavar="NAME", help="PATH is one of this branch, as '/plan.md'.")
@json_option("{path, last, lines: [{text, calls, others}], calls: {NAME: a call as of 'log'}}.")
@mount_option
def blame(path: str, branch: str | None, output: Output, mount: str | None) -> None:
    """Show which call left each line of PATH as it is: call, actor, time, number of the line, line.

    '-' is a change that the log does not have: an older one, or one past the mount. Several calls, or 'c42|-', mean
    that one of them made the line: the bytes between are lost, or they changed the file in turn. Renames are followed.
    Of a binary file and one above 2 MiB, only the last call is shown.

    'fusebackend diff c42' shows what the call c42 did, 'fusebackend undo c42' takes it back.
    """
    place = target.locate(path, mount) if branch is None else target.here(mount)
    shown = place.shown(place.path) if branch is None else path
    try:
        found = place.files.blame(place.path if branch is None else path, branch=branch)
    except OSError as error:
        raise Failed(f"'{shown}': {error.strerror}") from None
    output.document({**asdict(found), "path": shown})
    if found.lines is None:
        _show_last(output, shown, found)
    else:
        _show_lines(output, found, found.lines)


def _show_last(output: Output, shown: str, found: BlameResult) -> None:
    call = found.calls.get(found.last or "")
    name = output.name(shown)
    if call is None:
        output.line(f"{OTHERS}  {name}: the log has no change of it")
        return
    output.line(
        f"{call.call}  {moment(call.began_ns)}  {output.told(who(call.actor))}  {name}: {output.told(call.title)}"
    )


def _show_lines(output: Output, found: BlameResult, lines: list[BlamedLine]) -> None:
    heads = padded([_head(output, found, line) for line in lines])
    digits = len(str(len(lines)))
    for number, (head, line) in enumerate(zip(heads, lines, strict=True), 1):
        output.line(f"{output.paint(head, 'yellow')}  {number:>{digits}}) {output.text(line.text)}")


def _head(output: Output, found: BlameResult, line: BlamedLine) -> tuple[str, str, str]:
    """Return call, actor and time of a line."""
    names = line.calls[:CANDIDATES] + (["…"] if len(line.calls) > CANDIDATES else []) + [OTHERS] * line.others
    known = [found.calls[name] for name in line.calls if name in found.calls]
    actors = dict.fromkeys(output.told(who(call.actor)) for call in known[:CANDIDATES])
    times = [moment(call.began_ns) for call in known] if len(line.calls) == 1 else []
    return "|".join(names) or OTHERS, "|".join(actors), "".join(times)
