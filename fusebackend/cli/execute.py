"""`fusebackend exec`: a command in a shell that has the mount as its root, with its output as it comes. `fusebackend
shell`: the user's own shell, for which the mount point shows a branch or a view."""

from __future__ import annotations

import codecs
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Literal

import click

from fusebackend.base.paths import ROOT, AgentPath, is_below
from fusebackend.base.shown import shown
from fusebackend.cli import target
from fusebackend.cli.branch import complete_name
from fusebackend.cli.show import Failed, Output, json_option, note, write_all
from fusebackend.cli.target import Target, complete_path, mount_option
from fusebackend.cli.view import complete_view
from fusebackend.protocol import BranchInfo, ExecuteResponse, MountProtocol, ViewInfo

NOT_KNOWN = 1
"""The exit status when the server was lost, and that of the command is unknown."""

Stream = Literal["stdout", "stderr"]


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND [ARG]...")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End it after S seconds; without this, after the server's limit.",
)
@click.option("--cwd", shell_complete=complete_path, metavar="DIR", help="Start in this directory of the mount.")
@click.option("--branch", shell_complete=complete_name, metavar="NAME", help="Let this branch be its root.")
@click.option(
    "--view", shell_complete=complete_view, metavar="NAME", help="Let the mount through this view be its root."
)
@click.option("-i", "--stdin", "with_stdin", is_flag=True, help="Give it standard input, which is read first.")
@json_option("a line {stream, text} for each piece of output, then {exit_code, truncated, message}.")
@mount_option
def execute(
    command: Sequence[str],
    timeout_s: float | None,
    cwd: str | None,
    branch: str | None,
    view: str | None,
    with_stdin: bool,
    output: Output,
    mount: str | None,
) -> None:
    """Run a command in a shell that has the mount as its root, so that files have the paths of agents.

    One COMMAND is a line for the shell, as in: exec -- 'grep -r TODO /memories | sort > /report.txt'. With ARGs, it is
    a command that gets just these arguments. It starts in the current directory if that lies in the mount, or else in
    the root. Without --mount and --cwd, the mount is that of the current directory, or the only one there is.

    The exit status is that of the command: 124 if it took too long, 130 after Ctrl-C, which ends it.
    """
    place = _start(cwd, mount)
    start, tree = place.path, _tree(place.files, branch, view)
    if tree is not None:
        within = is_below(start, tree.path.rsplit("/", 2)[0])  # in the trees directory, perhaps in this tree
        start = AgentPath((start if is_below(start, tree.path) else tree.path) if within else tree.path + start)
    carried = tree if isinstance(tree, BranchInfo) and tree.directory is not None else None
    if carried is not None:
        _take_in(place, carried)
    stdin = _input() if with_stdin else None
    line = command[0] if len(command) == 1 else shlex.join(command)
    printed = PrintedOutput(output)
    try:  # after Ctrl-C the connection is closed, and the command ends with it
        answer = place.files.run(line, timeout=timeout_s, stdin=stdin, cwd=start, on_output=printed.take)
    except ValueError as error:
        raise Failed(f"the command can't be run: {error}") from None
    if carried is not None:
        place.files.create_branch(carried.name, None, carried.directory)
    code = NOT_KNOWN if answer.exit_code is None else answer.exit_code
    message = printed.message(answer)
    output.record({"exit_code": answer.exit_code, "truncated": answer.truncated, "message": message})
    if message is not None and not output.json:
        click.echo(f"Error: {shown(message)}", err=True)
    if answer.truncated:
        output.note("there was more output than the server allows; the rest was dropped")
    click.get_current_context().exit(code)


def _tree(files: MountProtocol, branch: str | None, view: str | None) -> BranchInfo | ViewInfo | None:
    """Return the branch, or the view, whose tree is meant; None for that of the mount. Raises `Failed`."""
    if branch is not None and view is not None:
        raise click.UsageError("give --branch or --view, not both")
    if branch is not None:
        return target.find_branch(files, branch)
    return None if view is None else target.find("view", view, files.views())


def _take_in(place: Target, branch: BranchInfo) -> None:
    """Have a branch know what was changed in its plain directory."""
    if not place.files.is_mounted:
        raise Failed(f"nothing is mounted, so run the command in '{branch.directory}', where branch '{branch.name}' is")
    place.files.take_in_branch(branch.name)


def _start(cwd: str | None, mount: str | None) -> Target:
    """The directory to start in. Raises `Failed`."""
    if cwd is None:
        place = target.here(mount)
        return place if place.kind() == "directory" else target.Target(place.files, ROOT, ROOT, place.root)
    place = target.locate(cwd, mount)
    if place.stat().type != "directory":
        raise Failed(f"'{cwd}' is not a directory")
    return place


def _input() -> bytes:
    from fusebackend.control.verbs import MAX_INPUT_BYTES

    content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(content) > MAX_INPUT_BYTES:
        raise Failed(f"standard input has more than {MAX_INPUT_BYTES >> 20} MiB; upload it, and have it read there")
    return content


class PrintedOutput:
    """Output as it comes, and whether the answer at the end says more than it.

    For programs it is JSON lines: text, with a lone surrogate for each byte that is not UTF-8.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._beginning = b""
        # A character may be cut in two by the end of a piece.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("surrogateescape"), "stderr": decoder("surrogateescape")}

    def take(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout" and len(self._beginning) < 4096:
            self._beginning += data
        if not self._output.json:
            file = (sys.stdout if stream == "stdout" else sys.stderr).buffer
            write_all(file, data)
            file.flush()
        elif text := self._decoders[stream].decode(data):
            self._output.record({"stream": stream, "text": text})

    def message(self, answer: ExecuteResponse) -> str | None:
        """Return the server's own message on the command, such as that it took too long: the part of the answer that it
        did not print."""
        first = answer.output.partition("\n")[0]
        own = self._beginning.decode("utf-8", "replace").partition("\n")[0]
        if not first.startswith("Error: ") or first == own:
            return None
        return first.removeprefix("Error: ")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[--] [COMMAND [ARG]...]")
@click.option("--branch", shell_complete=complete_name, metavar="NAME", help="See this branch at the mount point.")
@click.option("--view", shell_complete=complete_view, metavar="NAME", help="See the mount through this view there.")
@mount_option
def shell(command: Sequence[str], branch: str | None, view: str | None, mount: str | None) -> None:
    """Start a shell, or a COMMAND, on this terminal, for which the mount point shows a branch or a view.

    It has this machine's files, programs and network, and the rights of the user, as any other. Only the mount point
    differs, for it and all that it starts. It starts in the current directory if that lies in the mount, or else at the
    mount point. The mount can't end before it. The exit status is its own.

    A view is shown, and binds nobody: the socket of the mount answers this user all the same. 'exec --view' binds.

    For a command that sees nothing but the mount, use 'exec'.
    """
    from fusebackend.linux.bind_mount import run_with_bind

    place = target.here(mount)
    mountpoint = place.files.mountpoint
    if not place.files.is_mounted:
        raise Failed(f"'{mountpoint}' is no mount point: give --mount the directory of the mount")
    tree = _tree(place.files, branch, view)
    source = None if tree is None else target.outside(place.files, tree.path)
    if view is not None:
        note(f"{mountpoint} shows view '{view}', which binds nobody here; to bind a command: exec --view {view}")
    place.files.close()
    words = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    cwd = os.getcwd() if place.root else mountpoint
    status = run_with_bind(
        words,
        source=source,
        target=mountpoint,
        cwd=cwd if f"{cwd}/".startswith(mountpoint.rstrip("/") + "/") else mountpoint,
        no_namespace=f"run it as root, or work in {source}",
    )
    click.get_current_context().exit(status)
