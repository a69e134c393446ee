"""`fusebackend hook`: coding agents tell a mount of their tool calls.

Claude Code and Codex run a command before and after each tool call, and give it JSON on standard input. `hook run pre`
has everything that the agent's process and its descendants change from then on belong to one call of the log, until
`hook run post`: what its shell does, too. So `log` names the tool call, and `undo` takes it back.

A hook must not disturb its agent: after any error `hook run` prints nothing and ends with status 0, and it waits for
its agent, and for its mount, `RUN_TIMEOUT_S` at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fusebackend.base.durable import replace_file
from fusebackend.cli.show import Failed, Output, note
from fusebackend.linux import proc

if TYPE_CHECKING:
    from fusebackend.control.client.client import Client

RUN_TIMEOUT_S: Final = 2.0
"""How long a hook waits for a mount; the agent waits for the hook. Imports are not in it: on a machine with a load of
20 they took all of it, and the changes of a tool call were in a call of its session."""

HOOK_TIMEOUT_S: Final = 5
"""What the settings say, for an agent that ends hooks by itself."""

WORKTREE_TIMEOUT_S: Final = 120
"""Of a hook about worktrees: a branch in a directory is a copy of all files."""

TITLE_CHARACTERS: Final = 200

MAX_INPUT_BYTES: Final = 16 << 20
"""The agent gives the tool's whole input, such as the text of a file."""

PRE, POST = "pre", "post"

_TOLD: Final = ("command", "file_path", "path", "notebook_path", "url", "pattern", "description")
"""What a title shows of a tool's input: the first of these."""


class Agent(NamedTuple):
    """A coding agent, and where it has its hooks.

    Attributes:
        name: of the actor in the log.
        directory: of its settings, in the home directory and in a project.
        file: the JSON file in it with `hooks`.
        variable: an environment variable that names another directory of the user's settings.
        events: event → what `hook run` is given. All have the same form: event → [{matcher, hooks: [...]}].
        hint: what is to be done after the installation.
        has_worktrees: it asks hooks for the worktrees of its subagents.
    """

    name: str
    directory: str
    file: str
    variable: str
    events: Mapping[str, str]
    hint: str
    has_worktrees: bool = False


AGENTS: Final = {
    "claude-code": Agent(
        "claude-code", ".claude", "settings.json", "CLAUDE_CONFIG_DIR",
        {"PreToolUse": PRE, "PostToolUse": POST, "PostToolUseFailure": POST},
        "Claude Code reads it when a session begins; '/hooks' shows it",
        has_worktrees=True,
    ),
    "codex": Agent(
        "codex", ".codex", "hooks.json", "CODEX_HOME",
        {"PreToolUse": PRE, "PostToolUse": POST},
        "Codex runs a new hook when you have trusted it: '/hooks' in Codex",
    ),
}  # fmt: skip


class _Hooks(click.Group):
    """`worktree` is imported when it is called: with it, `run` would take twice as long, at every call of a tool."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "worktree":
            from fusebackend.cli.worktree import worktree

            return worktree
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Hooks)
def hook() -> None:
    """Have each tool call of a coding agent become a call of the log, its shell commands too.

    'fusebackend log' then names the agent and the tool call, and 'fusebackend undo' takes back just that.
    """


def _make(name: str, agent: Agent) -> None:
    @click.option("--install", "to_file", is_flag=True, help=f"Add them to ~/{agent.directory}/{agent.file}.")
    @click.option("--print", "printed", is_flag=True, help="Print what --install adds.")
    @click.option(
        "--project", is_flag=True, help=f"Use {agent.directory}/{agent.file} of the current directory instead."
    )
    def command(to_file: bool, printed: bool, project: bool, **worktrees: Any) -> None:
        if to_file == printed:
            raise click.UsageError("--install or --print: say which")
        if worktrees.get("worktrees"):
            if to_file and not project:
                raise click.UsageError("--worktrees needs --project: elsewhere the agent would get no worktrees at all")
        elif worktrees.get("directory") is not None or worktrees.get("on_remove", "keep") != "keep":
            raise click.UsageError("--on-remove and --in say how worktrees are: give --worktrees with them")
        hooks = _hooks(agent, **worktrees)
        if printed:
            Output(json=True).document({"hooks": hooks})
            return
        path = _settings_path(agent, project=project)
        done = install(path, hooks)
        note(f"{'added the hooks to' if done else 'the hooks are already in'} '{path}'; {agent.hint}")

    if agent.has_worktrees:
        for option in reversed(_WORKTREES):
            command = option(command)
    hook.command(name, help=f"Install or print the hooks of {name}.")(command)


_WORKTREES: Final = (
    click.option(
        "--worktrees", is_flag=True, help="Have the worktrees of subagents be branches of the mount, of all files."
    ),
    click.option(
        "--on-remove", type=click.Choice(["keep", "merge", "delete"]), default="keep", show_default=True,
        help="What happens to a worktree that is not needed any more. What can't be merged is kept.",
    ),
    click.option("--in", "directory", type=click.Path(), metavar="DIR", help="Put worktrees into directories in DIR."),
)  # fmt: skip


for _name, _agent in AGENTS.items():
    _make(_name, _agent)


# -- settings --------------------------------------------------------------------------------------------------


def _settings_path(agent: Agent, *, project: bool) -> Path:
    if project:
        return Path.cwd() / agent.directory / agent.file
    own = os.environ.get(agent.variable)
    return (Path(own) if own else Path.home() / agent.directory) / agent.file


def _hooks(
    agent: Agent, worktrees: bool = False, on_remove: str = "keep", directory: str | None = None
) -> dict[str, Any]:
    """Return the hooks as the settings have them."""
    found = {
        event: [{"matcher": "*", "hooks": [_handler(f"run {when} --agent {agent.name}", HOOK_TIMEOUT_S)]}]
        for event, when in agent.events.items()
    }
    if worktrees:
        place = "" if directory is None else f" --in {shlex.quote(os.path.abspath(directory))}"
        told = {
            "WorktreeCreate": f"create{place}",
            "WorktreeRemove": f"remove --on-remove {on_remove}",
            "SessionStart": "start",
        }
        for event, words in told.items():
            found[event] = [{"hooks": [_handler(f"worktree {words}", WORKTREE_TIMEOUT_S)]}]
    return found


def _handler(words: str, timeout_s: int) -> dict[str, Any]:
    return {"type": "command", "command": f"{_program()} hook {words}", "timeout": timeout_s}


def _program() -> str:
    """Return the command line of this program: its name where that is found, else its path.

    In a virtual environment it is the path: the agent may be started where that is not active.
    """
    found = shutil.which("fusebackend")
    own = os.path.abspath(sys.argv[0])
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        is_in_environment = sys.prefix != sys.base_prefix and found.startswith(sys.prefix + os.sep)
        return shlex.quote(found) if is_in_environment else "fusebackend"
    if os.path.basename(own) == "fusebackend":
        return shlex.quote(own)
    return f"{shlex.quote(sys.executable)} -m fusebackend"


def install(path: Path, wanted: Mapping[str, Any]) -> bool:
    """Add hooks to a settings file, which keeps all else; False if they are in it already.

    The file is replaced as a whole, and its old content kept beside it as `.before-fusebackend`. It is read as it is
    written, as UTF-8 without a byte order mark: `json.loads` takes bytes for UTF-16 where they look like that.

    Raises:
        Failed: the file is no JSON object in UTF-8, or its `hooks` have another form than the agent's documents say.
    """
    path = Path(os.path.realpath(path))  # the file may be a link into a repository of settings
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        text = b""
    try:
        settings = json.loads(text.decode()) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Failed(f"'{path}' is no JSON in UTF-8, and was left as it is: {error}") from None
    if not isinstance(settings, dict):
        raise Failed(f"'{path}' is no JSON object, and was left as it is")
    if not _add(path, settings.setdefault("hooks", {}), wanted):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if text:
        backup = path.with_name(path.name + ".before-fusebackend")
        _replace(backup, text, like=path)
    _replace(path, f"{json.dumps(settings, indent=2, ensure_ascii=False)}\n".encode(), like=path)
    return True


def _add(path: Path, hooks: Any, wanted: Mapping[str, Any]) -> bool:
    """Add the hooks that are missing, and replace those of another version of this program."""
    strange = Failed(f"the 'hooks' in '{path}' have a form that is not known here; it was left as it is")
    if not isinstance(hooks, dict):
        raise strange
    changed = False
    for event, groups in wanted.items():
        there = hooks.setdefault(event, [])
        if not isinstance(there, list) or not all(isinstance(group, dict) for group in there):
            raise strange
        if [group for group in there if _without_own(group) != group] == groups:
            continue
        hooks[event] = [rest for group in there if (rest := _without_own(group)) is not None] + groups
        changed = True
    return changed


def _without_own(group: dict[str, Any]) -> dict[str, Any] | None:
    """Return a group without our commands; None if nothing is left of it."""
    handlers = group.get("hooks")
    if not isinstance(handlers, list) or not any(map(_is_ours, handlers)):
        return group
    rest = [each for each in handlers if not _is_ours(each)]
    return {**group, "hooks": rest} if rest else None


def _is_ours(handler: Any) -> bool:
    command = handler.get("command") if isinstance(handler, dict) else None
    return (
        isinstance(command, str)
        and "fusebackend" in command
        and any(words in command for words in (" hook run ", " hook worktree "))
    )


def _replace(path: Path, content: bytes, *, like: Path) -> None:
    """Write a file as a whole, with the mode of another one."""
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode = like.stat().st_mode & 0o777
    new = f"{path.parent}/.{path.name}.{secrets.token_hex(8)}"
    try:
        replace_file(str(path), content, new=new, mode=mode)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


# -- while the agent runs --------------------------------------------------------------------------------------


@hook.command(hidden=True)
@click.argument("when", type=click.Choice([PRE, POST]))
@click.option("--agent", "agent", default="")
def run(when: str, agent: str) -> None:
    """Tell mounts of a tool call. The settings of an agent call this, with the agent's JSON on standard input."""
    with contextlib.suppress(Exception, _Late):
        with _limited():
            told = json.loads(sys.stdin.buffer.read(MAX_INPUT_BYTES))
            mountpoints = _mountpoints(str(told.get("cwd") or os.getcwd()))
        if mountpoints:
            from fusebackend.control.client.client import Client

            with _limited():
                _tell(Client, mountpoints, when, agent, told)


def _tell(client: type[Client], mountpoints: Sequence[str], when: str, agent: str, told: Mapping[str, Any]) -> None:
    """Begin a call, or end it: in the mount of the agent's directory, or in all mounts if that is in none."""
    name = str(told.get("tool_use_id") or f"{told.get('session_id', '')} {told.get('tool_name', '')}")
    for mountpoint in mountpoints:
        with contextlib.suppress(Exception), client(mountpoint, view="") as files:
            if when == POST:
                files.end_call(name)
            else:
                thread = str(told.get("session_id") or "")
                files.begin_call(title(told), pid=agent_pid(), id=name, agent=agent, thread=thread)


def _mountpoints(directory: str) -> list[str]:
    from fusebackend.linux import mount_table as table

    found = table.our_mount_of(directory)
    return [entry.mountpoint for entry in table.our_mounts()] if found is None else [found]


def title(told: Mapping[str, Any]) -> str:
    """Return a line for people: the tool, and what it is about."""
    tool, given = str(told.get("tool_name") or "tool"), told.get("tool_input")
    about = next((str(given[name]) for name in _TOLD if given.get(name)), "") if isinstance(given, dict) else ""
    return " ".join(f"{tool}: {about}".split())[:TITLE_CHARACTERS].rstrip(" :")


def agent_pid() -> int:
    """Return the process of the agent: the first one above this that is no shell running the hook."""
    pid = os.getppid()
    while pid > 1:
        if b"hook run" not in proc.read(f"{pid}/cmdline").replace(b"\0", b" "):
            return pid
        pid = int(proc.stat(pid)[1])
    return os.getppid()


class _Late(BaseException):
    """`RUN_TIMEOUT_S` is over: for all mounts, so what is suppressed for one of them is none of this."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, RUN_TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
