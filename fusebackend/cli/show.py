"""The output of commands: names and text on standard output, errors on standard error, JSON for programs.

Names are bytes. They go out as the bytes they are, so that other programs can use them; on a terminal they are escaped
(`base/shown.py`), because a name must not steer the terminal, and the approver of a patch must see all of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import IO, Any, TypeVar

import click

from fusebackend.base.errors import UserError
from fusebackend.base.shown import one_line, shown

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130
"""The exit status after Ctrl-C, as of a shell."""

_BLANKS = re.compile("(?<= ) |^ | $")
"""A blank that makes two columns of one, or is not seen."""


def json_option(shape: str) -> Callable[[F], F]:
    """`--json`, with its output. The command gets its `Output`, which is for people or for programs."""

    def chosen(context: click.Context, parameter: click.Parameter, is_json: bool) -> Output:
        return Output(is_json)

    return click.option("--json", "output", is_flag=True, callback=chosen, help=f"For programs: {shape}")


class Failed(click.ClickException):
    """An error in one line; it becomes `Error: …` and exit status 1."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


class Complaints(contextlib.AbstractContextManager["Complaints"]):
    """The errors of a command that goes on with its next operand, each in a line of its own.

    complaints = Complaints()
    for path in paths:
        with complaints:          # takes what goes wrong with this one
            ...
    complaints.finish()           # ends the command with `exit_code` if anything did
    """

    def __init__(self, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        self.count = 0

    def add(self, *messages: str) -> None:
        self.count += len(messages)
        for message in messages:
            click.echo(f"Error: {shown(message)}", err=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, BrokenPipeError) or not isinstance(error, (Failed, OSError, UserError)):
            return False
        self.add(error.message if isinstance(error, Failed) else one_line(error))
        return True

    def finish(self, otherwise: int = 0) -> None:
        """End the command, if anything went wrong or the exit status is another one than 0."""
        code = self.exit_code if self.count else otherwise
        if code:
            click.get_current_context().exit(code)


def padded(rows: Sequence[Sequence[str]], gap: str = "  ", numbers: Collection[int] = ()) -> list[str]:
    """Return a line for each row of cells, in columns that are as wide as they must be.

    Args:
        gap: between them.
        numbers: the columns of numbers, which end together.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [f"{{:{'>' if column in numbers else '<'}{width}}}" for column, width in enumerate(widths)]
    return [gap.join(cells).format(*row) for row in rows]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """`padded`, with nothing behind the last column."""
    return [line.rstrip() for line in padded(rows)]


def confirm_loss(lost: str, question: str, yes: bool) -> None:
    """Ask on the terminal before something is lost, unless `yes`.

    Args:
        lost: what can't be had back.

    Raises:
        Failed: there is no terminal.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(f"{lost} can't be had back, and there is no terminal to ask on: add --yes")
    click.confirm(f"{question}?", abort=True, err=True)


def confirm_deletion(one: str, several: str, names: Sequence[str], known: Collection[str], yes: bool) -> None:
    """Ask before things are deleted that have names, unless `yes`. Raises as `confirm_loss`; `Failed` for no such name.

    Args:
        one, several: the word for one of them, and for more.
    """
    for name in names:
        if name not in known:
            raise Failed(f"there is no {one} '{name}', and nothing was deleted; '{one} list' shows them")
    which = ", ".join(f"'{Output().name(name)}'" for name in names)
    confirm_loss(f"a deleted {one}", f"Delete {several if len(names) > 1 else one} {which}", yes)


def note(message: str) -> None:
    """Something to know that is no error."""
    click.echo(f"fusebackend: {shown(message)}", err=True)


class Output:
    """Standard output, for people or for programs: `line` and `note` print nothing for programs, `document` and
    `record` nothing for people.

    Attributes:
        json: it is for programs.
        terminal: it is read by a person, not by a program.
        colours: it may have colours: a terminal that can, and no `NO_COLOR`.
    """

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self.terminal = sys.stdout.isatty()
        self.colours = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._stream = sys.stdout.buffer

    def name(self, name: str) -> str:
        """A name or a path, as it may be printed here."""
        return shown(name) if self.terminal else name

    def text(self, text: str, *, lines: bool = False) -> str:
        """A line of text as it may be printed here, or several `lines`."""
        return shown(text, but="\t\n" if lines else "\t") if self.terminal else text

    def told(self, text: str) -> str:
        """What others have said of themselves and of what they do, such as an actor or a title, also for a program: a
        newline in it would be one more line, and two blanks the end of a column. `--json` has it as it is."""
        return _BLANKS.sub(r"\\040", shown(text))

    def row(self, line: str) -> str:
        """A line of a table, cut at the edge of a terminal, where the rest of it would look like a row of its own."""
        columns = shutil.get_terminal_size().columns
        return line if not self.terminal or len(line) <= columns else line[: columns - 1] + "…"

    def paint(self, text: str, colour: str, *, bold: bool = False) -> str:
        return click.style(text, fg=colour, bold=bold or None) if self.colours else text

    def line(self, text: str = "", end: str = "\n") -> None:
        if not self.json:
            self.bytes(encode(text + end))

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line(line)

    def note(self, message: str) -> None:
        """Something for people to know that is no error."""
        if not self.json:
            note(message)

    def notes(self, messages: Iterable[str]) -> None:
        for message in messages:
            self.note(message)

    def listing(self, objects: Sequence[Any], lines: Sequence[str], empty: str) -> None:
        """A list of things: as one document for programs, a line each for people. `empty` says that there are none."""
        self.document(objects)
        if not lines:
            self.note(empty)
        self.lines(lines)

    def bytes(self, data: bytes) -> None:
        write_all(self._stream, data)

    def flush(self) -> None:
        self._stream.flush()

    def document(self, value: Any) -> None:
        """One JSON document. Odd bytes of names are `\\udc80` to `\\udcff` in it."""
        if self.json:
            self.bytes(json.dumps(value, indent=2).encode("ascii") + b"\n")

    def record(self, value: Any) -> None:
        """One line of a stream of JSON lines, at once."""
        if self.json:
            self.bytes(json.dumps(value).encode("ascii") + b"\n")
            self.flush()


def write_all(stream: IO[bytes], data: bytes) -> None:
    """Write to a standard stream, which is not buffered under `PYTHONUNBUFFERED` and then may take only a part."""
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def encode(text: str) -> bytes:
    """The bytes of text with odd bytes of names in it. Characters that stand for no bytes are escaped."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Run a command with standard streams, whatever it was started with.

    The null device takes the place of one that it was started without, as by some cron daemons and `<&-`: Python has
    none for it then, and the next file that anything opens would get the number that libraries print to. What is left
    of an output that can't be written is dropped: this was said, and Python would end with status 120.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 (until the process ends)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def announce(lines: Sequence[str]) -> None:
    """Print lines."""
    output = Output()
    with contextlib.suppress(OSError):  # there may be no reader; the mount is there all the same
        output.line("\n".join(map(output.text, lines)))
        output.flush()


# -- attributes of files ----------------------------------------------------------------------------------------
#
# The attributes of a file, in the form of ls(1) and stat(1).


def mode_string(kind: str | None, mode: int | None) -> str:
    """Type and permissions as `ls -l` shows them, `-rw-r--r--`."""
    from fusebackend.protocol.records import FILE_TYPES  # here, for most commands need none of the protocol

    bits = next((bits for bits, word in FILE_TYPES.items() if word == kind), 0)
    return stat.filemode(bits | (mode or 0))


@functools.cache
def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.cache
def group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


TO_THE_MINUTE, TO_THE_SECOND = "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"


def local_time(time_s: float, form: str = TO_THE_SECOND, fraction: str = "") -> str:
    """A time in the local zone; a number of seconds, with this fraction, where the calendar has no such year."""
    try:
        return time.strftime(form, time.localtime(time_s))
    except (OverflowError, ValueError, OSError):
        return f"@{time_s:.0f}{fraction}"


def to_the_nanosecond(time_ns: int) -> str:
    """A time in the local zone with all its digits, as stat(1) prints it."""
    seconds, nanoseconds = divmod(time_ns, 10**9)
    fraction = f".{nanoseconds:09}"
    return local_time(seconds, f"{TO_THE_SECOND}{fraction} %z", fraction)


def age(age_ns: int) -> str:
    """Return a span of time for people: its largest unit."""
    age_s = max(0, age_ns) // 10**9
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60)):
        if age_s >= seconds:
            return f"{age_s // seconds}{unit}"
    return f"{age_s}s"
