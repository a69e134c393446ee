"""OpenAI's Agents SDK (`openai-agents`) over any backend, a mount or a client.

    with fusebackend.connect("/mnt/agent") as files:
        tools = [patch_tool(files), shell_tool(files), *file_tools(files)]
        Runner.run_sync(Agent("planner", tools=tools), "Plan the week.")

`patch_tool` and `shell_tool` are tools of the SDK that OpenAI's models know; `file_tools` are functions for any model.
A patch is one `edit` of the text that it was computed from, so it loses nothing that others write at the same time.

All of them take these arguments, and raise TypeError for what is no backend:

- `backend`: any backend, in any dialect; a `Mount`, a `Client`;
- `root`: the directory where relative paths and commands begin. No path leads out of it, but commands see all that the
  backend's commands see, and a symbolic link means what it does to the backend's verbs;
- `agent`: who makes the changes, if neither `fusebackend.acting` nor `connect` names an actor. The call is the SDK's
  tool call, the thread the `group_id` of its trace.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import posixpath
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import agents
from agents import ApplyPatchOperation, ApplyPatchResult, ShellCallOutcome, ShellCommandOutput, ShellResult
from agents.tool_context import ToolContext

from fusebackend.base.awaiting import aside
from fusebackend.base.errors import IS_DIRECTORY
from fusebackend.base.shown import name_meant, name_shown, shown
from fusebackend.integrations.texts import ABSENT, NotChanged, NoText, Texts
from fusebackend.integrations.tools import TOOLS, Refused, Tool, check
from fusebackend.linux.command import streams
from fusebackend.protocol.actors import NOBODY, acting, current_actor
from fusebackend.text import as_shown, keep_line_ends

READING = ("ls", "read", "grep", "glob")


def patch_tool(backend: Any, *, root: str = "/", agent: str = "", **options: Any) -> agents.ApplyPatchTool:
    """The SDK's `apply_patch`, with a `PatchEditor`; `options` are those of `ApplyPatchTool`."""
    asks = options.pop("needs_approval", False)

    async def named(context: agents.RunContextWrapper[Any], operation: ApplyPatchOperation, call: str) -> bool:
        # The one place where the SDK tells an operation's call; it does not come here again after an interruption.
        operation.ctx_wrapper = ToolContext.from_agent_context(
            context, call, tool_name="apply_patch", tool_arguments=operation.diff or ""
        )
        asked = asks(context, operation, call) if callable(asks) else asks
        return bool(await asked if inspect.isawaitable(asked) else asked)

    return agents.ApplyPatchTool(PatchEditor(backend, root=root, agent=agent), needs_approval=named, **options)


def shell_tool(backend: Any, *, root: str = "/", agent: str = "", **options: Any) -> agents.ShellTool:
    """The SDK's `shell`: each command is one `execute`; none follows one that timed out. `options` of `ShellTool`.

    Raises:
        TypeError: the backend runs no commands.
    """
    place = _Place(backend, root, agent)
    if not place.texts.files.can_execute:
        raise TypeError(f"{backend!r} runs no commands")

    async def run(request: agents.ShellCommandRequest) -> ShellResult:
        asked = request.data.action
        timeout = math.ceil(asked.timeout_ms / 1000) if asked.timeout_ms else None
        outputs: list[ShellCommandOutput] = []
        for command in asked.commands:
            line = command if place.texts.root == "/" else f"cd {shlex.quote(place.texts.root)} || exit\n{command}"
            with place.acting(request.data.call_id):
                done = await place.texts.files.aexecute(line, timeout=timeout)
            stdout, stderr, timed_out = streams(done)
            outcome = ShellCallOutcome("timeout") if timed_out else ShellCallOutcome("exit", done.exit_code)
            outputs.append(ShellCommandOutput(stdout, stderr, outcome, command))
            if timed_out:
                break
        return ShellResult(outputs, max_output_length=asked.max_output_length)

    return agents.ShellTool(run, **options)


def file_tools(backend: Any, *names: str, root: str = "/", agent: str = "") -> list[agents.FunctionTool]:
    """Verbs as function tools: `ls`, `read`, `grep` and `glob`, or others by name, such as `edit`.

    Raises:
        ValueError: there is no such tool.
    """
    known = [name for name, tool in TOOLS.items() if tool.verb.in_view]
    if wrong := set(names).difference(known):
        raise ValueError(f"there is no tool '{min(wrong)}'; there are {', '.join(known)}")
    place = _Place(backend, root, agent)
    return [place.function(TOOLS[name]) for name in names or READING]


class PatchEditor:
    """The SDK's `ApplyPatchEditor`. What can't be done is a result with the status `failed`, and changes nothing."""

    def __init__(self, backend: Any, *, root: str = "/", agent: str = "") -> None:
        self._place = _Place(backend, root, agent)
        self._texts = self._place.texts

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        def create(path: str) -> str:
            check(self._texts.files.write(path, _patched("", operation, "create")).error)
            return f"Created {operation.path}"

        return await self._result(operation, create)

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        def update(path: str) -> str:
            target = self._place.path(name_meant(operation.move_to or operation.path))
            if target != path and self._texts.kind(target):
                raise Refused(f"{operation.move_to} is there already")
            before = self._text(path) if target != path else ""
            self._texts.change(path, lambda text: (text, keep_line_ends(text, _patched(as_shown(text), operation))))
            if target == path:
                return f"Updated {operation.path}"
            after = self._text(path)
            error = self._texts.files.move(path, target).error
            if error and self._texts.files.edit(path, after, before).error:  # others have changed it since
                error = f"it is updated, and not moved: {error}"
            check(error)
            return f"Updated {operation.path}\nMoved {operation.path} to {operation.move_to}"

        return await self._result(operation, update)

    def _text(self, path: str) -> str:
        return (self._texts.files.download_files([path])[0].content or b"").decode("utf-8", "replace")

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        def delete(path: str) -> str:
            kind = self._texts.kind(path)
            if kind != "file":
                raise NoText(IS_DIRECTORY if kind else ABSENT)
            check(self._texts.files.delete(path).error)
            return f"Deleted {operation.path}"

        return await self._result(operation, delete)

    async def _result(self, operation: ApplyPatchOperation, make: Callable[[str], str]) -> ApplyPatchResult:
        def made() -> ApplyPatchResult:
            try:
                return ApplyPatchResult("completed", make(self._place.path(name_meant(operation.path))))
            except (Refused, NoText, NotChanged, OSError, NotImplementedError) as error:
                return ApplyPatchResult("failed", shown(f"{operation.path}: {error}", but="\n"))

        with self._place.acting(getattr(operation.ctx_wrapper, "tool_call_id", "")):
            return await aside(self, operation.type, made)


class _Place:
    """A directory of a backend, and who works there."""

    def __init__(self, backend: Any, root: str, agent: str) -> None:
        self.texts = Texts(backend, root)
        self._actor = getattr(backend, "actor", NOBODY)
        self._agent = agent

    def path(self, given: str) -> str:
        """The path in the backend. Raises `Refused` if it leads out of the root."""
        path = posixpath.normpath("./" + posixpath.join(self.texts.root, given).lstrip("/"))
        absolute = "/" if path == "." else f"/{path}"
        if path.split("/")[0] == ".." or not f"{absolute}/".startswith(self.texts.root.rstrip("/") + "/"):
            raise Refused(f"'{given}' leads out of {self.texts.root}")
        return absolute

    @contextlib.contextmanager
    def acting(self, call: str) -> Iterator[None]:
        known = current_actor(self._actor)
        thread = known.thread or getattr(agents.get_current_trace(), "group_id", None) or ""
        with acting(replace(known, agent=known.agent or self._agent, thread=thread, call=known.call or call)):
            yield

    def function(self, tool: Tool) -> agents.FunctionTool:
        has_default = "path" in tool.schema["properties"] and "path" not in tool.schema.get("required", ())
        begin = {"path": name_shown(self.texts.root)} if has_default else {}

        async def call(context: ToolContext[Any], given: str) -> str:
            try:
                arguments = begin | json.loads(given or "{}")
                with self.acting(context.tool_call_id):
                    return await tool.answer(self.texts.files, arguments, self.path)
            except (Refused, ValueError, TypeError) as error:
                return f"error: {error}"

        return agents.FunctionTool(tool.name, tool.text, tool.schema, call, strict_json_schema=False)


def _patched(text: str, operation: ApplyPatchOperation, mode: Literal["default", "create"] = "default") -> str:
    try:
        return agents.apply_diff(text, operation.diff or "", mode)
    except ValueError as error:
        raise Refused(f"the patch does not fit the file as it is now: {error}") from None
