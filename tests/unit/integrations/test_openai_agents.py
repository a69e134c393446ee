"""OpenAI's Agents SDK: its own runner with a scripted model, over several kinds of backends."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_kinds import opened_backend
from for_each import for_each

pytest.importorskip("agents")

from agents import Agent, ApplyPatchEditor, ApplyPatchOperation, Runner, set_trace_processors, trace
from agents.testing import ScriptedModel
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from fusebackend.backends import (
    InMemoryBackend,
    LocalShellBackend,
)
from fusebackend.integrations.openai_agents import PatchEditor, file_tools, patch_tool, shell_tool
from fusebackend.protocol import EditResult
from fusebackend.protocol.actors import Actor, acting, current_actor
from fusebackend.testing.each import each

set_trace_processors([])  # else a thread would send them to OpenAI

PLAN = "monday\ntuesday\nwednesday\nthursday\nfriday\n"


@pytest.fixture(params=["sqlite", "store"])  # the tools ask verbs; these two tell of a change meanwhile each in its way
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with opened_backend(request.param, tmp_path) as backend:
        yield backend


NUMBERS = itertools.count()


def patched(kind: str, path: str, diff: str | None = None, call: str = "") -> ResponseApplyPatchToolCall:
    call = call or f"patch-{next(NUMBERS)}"
    operation = {"type": kind, "path": path} | ({} if diff is None else {"diff": diff})
    return ResponseApplyPatchToolCall.model_validate(
        {"id": call, "call_id": call, "operation": operation, "status": "completed", "type": "apply_patch_call"}
    )


def called(name: str, call: str = "", **arguments: Any) -> ResponseFunctionToolCall:
    call = call or f"call-{next(NUMBERS)}"
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=call, name=name, type="function_call", id=call
    )


def commanded(*commands: str, **limits: int) -> ResponseFunctionShellToolCall:
    call = f"shell-{next(NUMBERS)}"
    return ResponseFunctionShellToolCall.model_validate(
        {
            "id": call,
            "call_id": call,
            "action": {"commands": list(commands), "timeout_ms": None, "max_output_length": None, **limits},
            "status": "completed",
            "type": "shell_call",
        }
    )


def said(words: str) -> ResponseOutputMessage:
    text = ResponseOutputText(annotations=[], text=words, type="output_text")
    return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")


def answers(tools: list[Any], *steps: Any) -> list[dict[str, Any]]:
    """Run an agent whose model makes these calls one after the other, and return what it is answered."""
    model = ScriptedModel([*([step] for step in steps), [said("done")]])
    result = asyncio.run(Runner.run(Agent("planner", model=model, tools=tools), "go"))
    assert result.final_output == "done"
    return [item.raw_item for item in result.new_items if item.type == "tool_call_output_item"]


def content(backend: Any, path: str) -> bytes | None:
    answer = backend.download_files([path])[0]
    return None if answer.error else answer.content


def apply(editor: PatchEditor, kind: Any, path: str, diff: str | None = None, move_to: str | None = None) -> str:
    operation = ApplyPatchOperation(kind, path, diff, move_to=move_to)
    result = asyncio.run(getattr(editor, kind)(operation))
    return f"{result.status}: {result.output}"


def test_an_agent_works_with_files(backend: Any) -> None:
    tools = [patch_tool(backend, root="/work"), *file_tools(backend, root="/work")]
    done = answers(
        tools,
        patched("create_file", "plan.md", "+monday\n+tuesday\n+"),
        patched("update_file", "/work/plan.md", "@@\n monday\n-tuesday\n+tuesday: rest\n"),
        called("read", path="plan.md"),
        called("grep", pattern="rest"),
        called("ls"),
        called("glob", pattern="**/*.md"),
        patched("delete_file", "plan.md"),
        called("read", path="plan.md"),
    )
    outputs = [each["output"] for each in done]
    assert outputs[:4] == [
        "Created plan.md",
        "Updated /work/plan.md",
        "     1\tmonday\n     2\ttuesday: rest",
        "/work/plan.md:2: tuesday: rest",
    ]
    assert outputs[4].startswith("/work/plan.md\t")
    assert outputs[5:7] == ["/work/plan.md", "Deleted plan.md"]
    assert outputs[7].startswith("error: ")
    assert [each.get("status") for each in done if each["type"] == "apply_patch_call_output"] == ["completed"] * 3
    assert content(backend, "/work/plan.md") is None


ATTACKS = [
    "../x",
    "/../x",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../x",
    "/work/../x",
    "/workers/x",
    "/work2/x",
    "..",
    "/",
]


@for_each("path", ATTACKS)
def test_paths_that_lead_out_are_refused(path: str) -> None:
    backend = InMemoryBackend()
    for made in ("/x", "/etc/passwd", "/workers/x", "/work2/x"):
        backend.upload_files([(made, b"secret\n")])
    editor = PatchEditor(backend, root="/work")
    refused = f"failed: {path}: '{path}' leads out of /work"
    assert apply(editor, "create_file", path, "+x") == refused
    assert apply(editor, "update_file", path, "@@\n-secret\n+known\n") == refused
    assert apply(editor, "delete_file", path) == refused
    backend.upload_files([("/work/a", b"a\n")])
    assert apply(editor, "update_file", "a", "@@\n-a\n+b\n", path) == f"failed: a: '{path}' leads out of /work"
    tools = file_tools(backend, "ls", "read", "grep", "write", "delete", "move", root="/work")
    steps = [called("ls", path=path), called("read", path=path), called("grep", path=path, pattern="secret")]
    steps += [called("write", path=path, content="x"), called("delete", path=path)]
    steps += [called("move", source=path, destination="b"), called("move", source="a", destination=path)]
    assert {each["output"] for each in answers(tools, *steps)} == {f"error: '{path}' leads out of /work"}
    assert content(backend, "/work/a") == b"a\n"
    assert {content(backend, made) for made in ("/x", "/etc/passwd", "/workers/x", "/work2/x")} == {b"secret\n"}


def test_a_tool_that_has_no_path_is_given_none() -> None:
    backend = InMemoryBackend()
    backend.upload_files([("/work/a", b"a\n")])
    moved = answers(file_tools(backend, "move", root="/work"), called("move", source="a", destination="b"))
    assert [each["output"] for each in moved] == ["/work/a is /work/b now"]
    assert content(backend, "/work/b") == b"a\n"


def test_a_pattern_does_not_lead_out() -> None:
    backend = InMemoryBackend()
    backend.upload_files([("/secret.md", b"x"), ("/work/a.md", b"x")])
    (done,) = answers(file_tools(backend, "glob", root="/work"), called("glob", pattern="../*.md"))
    assert done["output"].startswith("error: ") and "secret" not in done["output"]


def test_a_file_that_was_changed_elsewhere_since_it_was_read_is_told_and_kept(backend: Any) -> None:
    backend.upload_files([("/plan.md", PLAN.encode())])
    editor = PatchEditor(backend)
    backend.edit("/plan.md", "tuesday", "tuesday: work")  # by another, after the model has read it
    refused = apply(editor, "update_file", "plan.md", "@@\n monday\n-tuesday\n+tuesday: rest\n")
    assert refused.startswith("failed: plan.md: the patch does not fit the file as it is now: Invalid Context")
    assert content(backend, "/plan.md") == PLAN.replace("tuesday", "tuesday: work").encode()
    assert apply(editor, "update_file", "plan.md", "@@\n-friday\n+friday: rest\n") == "completed: Updated plan.md"
    expected = PLAN.replace("tuesday", "tuesday: work").replace("friday", "friday: rest")
    assert content(backend, "/plan.md") == expected.encode()


@pytest.mark.parametrize("other", ["friday", "tuesday"])
def test_a_change_between_the_read_and_the_write_of_a_patch_is_not_lost(other: str) -> None:
    class Overtaken(InMemoryBackend):
        done = False

        def download_files(self, paths: list[str]) -> Any:
            answer = super().download_files(paths)
            if not self.done:
                self.done = True
                assert self.edit("/plan.md", other, f"{other}: work").error is None
            return answer

    backend = Overtaken()
    backend.upload_files([("/plan.md", PLAN.encode())])
    done = apply(PatchEditor(backend), "update_file", "plan.md", "@@\n-tuesday\n+tuesday: rest\n")
    expected = PLAN.replace(other, f"{other}: work")
    if other == "friday":
        expected = expected.replace("tuesday", "tuesday: rest")
    assert done.startswith("completed" if other == "friday" else "failed: plan.md: the patch does not fit")
    assert content(backend, "/plan.md") == expected.encode()


NOT_DONE = [
    ("create_file", "b.md", "+new", None, "failed: b.md: .*exists.*"),
    ("create_file", "c.md", "no plus", None, "failed: c.md: the patch does not fit the file.*"),
    ("update_file", "none.md", "@@\n-a\n+b\n", None, "failed: none.md: there is no such file"),
    ("update_file", "d", "@@\n-a\n+b\n", None, "failed: d: it is a directory"),
    ("update_file", "bytes", "@@\n-a\n+b\n", None, "failed: bytes: it is no text in UTF-8"),
    ("delete_file", "none.md", None, None, "failed: none.md: there is no such file"),
    ("delete_file", "d", None, None, "failed: d: it is a directory"),
    ("delete_file", "/", None, None, "failed: /: it is a directory"),
    ("update_file", "b.md", "@@\n-b\n+c\n", "d/a.md", "failed: b.md: d/a.md is there already"),
    ("update_file", "b\0.md", "@@\n-b\n+c\n", None, "failed: .*"),
    *(("create_file", path, "+x", None, f"failed: {path}: '{path}' leads out of /")
      for path in ("../x", "/../x", "a/../../x")),
]  # fmt: skip


def test_what_a_patch_does_not_do(backend: Any) -> None:
    before = {"/d/a.md": b"a\n", "/b.md": b"b\n", "/bytes": b"\xff\xfe\n"}
    backend.upload_files(list(before.items()))
    editor = PatchEditor(backend)
    assert isinstance(editor, ApplyPatchEditor)
    for case in each(NOT_DONE):
        with case as (kind, path, diff, move_to, expected):
            assert re.fullmatch(expected, apply(editor, kind, path, diff, move_to), re.DOTALL)
    assert {path: content(backend, path) for path in (*before, "/c.md", "/x")} == {**before, "/c.md": None, "/x": None}


def test_texts_of_all_kinds(backend: Any) -> None:
    backend.upload_files(
        [("/empty", b""), ("/crlf", b"one\r\ntwo\r\n"), ("/last", b"one\ntwo"), ("/한글.md", b"x\nx\n")]
    )
    editor = PatchEditor(backend)
    for name, diff, expected in [
        ("empty", "@@\n+first\n", (b"first\n", b"first")),
        ("crlf", "@@\n one\n-two\n+2\n", (b"one\r\n2\r\n",)),
        ("last", "@@\n one\n-two\n+2\n", (b"one\n2",)),
    ]:
        assert apply(editor, "update_file", name, diff) == f"completed: Updated {name}"
        assert content(backend, f"/{name}") in expected
    assert apply(editor, "update_file", "한글.md", "@@\n x\n-x\n+日本\n", "moved/날.md") == (
        "completed: Updated 한글.md\nMoved 한글.md to moved/날.md"
    )
    assert (content(backend, "/한글.md"), content(backend, "/moved/날.md")) == (None, "x\n日本\n".encode())


def test_a_patch_keeps_the_line_ends_of_a_mixed_file(backend: Any) -> None:
    backend.upload_files([("/mixed", b"one\r\ntwo\nthree\rthree\r\nfour\nfive\r\n")])
    editor = PatchEditor(backend)
    assert apply(editor, "update_file", "mixed", "@@\n one\n-two\n+2\n+2b\n three\rthree\n@@\n-five\n") == (
        "completed: Updated mixed"
    )
    assert content(backend, "/mixed") == b"one\r\n2\n2b\nthree\rthree\r\nfour\n"
    assert apply(editor, "update_file", "mixed", "@@\n-one\n+1\n+1b\n 2\n") == "completed: Updated mixed"
    assert content(backend, "/mixed") == b"1\r\n1b\r\n2\n2b\nthree\rthree\r\nfour\n"


def test_an_update_that_can_not_be_moved_is_taken_back() -> None:
    backend = InMemoryBackend()
    backend.upload_files([("/a", b"a\r\nb\n"), ("/file", b"f\n")])
    editor = PatchEditor(backend)
    assert apply(editor, "update_file", "a", "@@\n a\n-b\n+c\n", "file/a").startswith("failed: a: Error moving")
    assert content(backend, "/a") == b"a\r\nb\n"
    move = backend.move

    def others_first(source: str, destination: str) -> Any:
        backend.upload_files([("/a", b"of others\n")])
        return move(source, "/file/a")

    backend.move = others_first  # type: ignore[method-assign]
    failed = apply(editor, "update_file", "a", "@@\n a\n-b\n+c\n", "there")
    assert failed.startswith("failed: a: it is updated, and not moved: ") and content(backend, "/a") == b"of others\n"


def test_a_backend_that_refuses_is_told() -> None:
    backend: Any = InMemoryBackend()
    backend.edit = lambda *arguments, **options: EditResult(error="Error: no space")
    backend.upload_files([("/a", b"a\n")])
    assert apply(PatchEditor(backend), "update_file", "a", "@@\n-a\n+b\n") == "failed: a: Error: no space"


def test_arguments_that_a_model_gets_wrong() -> None:
    backend = InMemoryBackend()
    given = {
        "{": ("read", "error: Expecting property name"),
        "": ("ls", r"\(nothing\)$"),
        "[]": ("ls", "error: "),
        "{}": ("read", "error: Wrong arguments of read: Object missing required field `path`$"),
        '{"path": 3}': ("read", "error: "),
        '{"path": ' + "9" * 5000 + "}": ("read", "error: "),
        '{"lines": 3}': ("ls", "error: Wrong arguments of ls: Object contains unknown field `lines`$"),
    }
    steps = [called(name).model_copy(update={"arguments": text}) for text, (name, _) in given.items()]
    for done, (_, said) in zip(answers(file_tools(backend), *steps), given.values(), strict=True):
        assert re.match(said, done["output"])


def test_wrong_uses() -> None:
    for call, words in [
        (lambda: file_tools(InMemoryBackend(), "undo"), "there is no tool 'undo'; there are ls, read"),
        (lambda: patch_tool(3), "is no backend"),
        (lambda: shell_tool(InMemoryBackend()), r"<InMemoryBackend.*> runs no commands"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            call()


def test_commands(tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    backend = LocalShellBackend(tmp_path)
    tool = shell_tool(backend)
    done, failed, slow, long = answers(
        [tool],
        commanded("echo one; echo two >&2", "true", "echo over; exit 3"),
        commanded("cat none.txt"),
        commanded("echo begun; sleep 60", "echo never > never.txt", timeout_ms=300),
        commanded("printf 0123456789", max_output_length=4),
    )
    first, second, third = done["output"]
    assert (first["stdout"], first["stderr"], first["outcome"]) == ("one\n", "two", {"type": "exit", "exit_code": 0})
    assert (second["stdout"], second["stderr"]) == ("", "")
    assert (third["stdout"].strip(), third["outcome"]["exit_code"]) == ("over", 3)
    assert "none.txt" in failed["output"][0]["stderr"] and failed["output"][0]["outcome"]["exit_code"] == 1
    assert [each["outcome"]["type"] for each in slow["output"]] == ["timeout"]
    assert "begun" in slow["output"][0]["stdout"] and not (tmp_path / "never.txt").exists()
    (there,) = answers([shell_tool(backend, root=f"{tmp_path}/sub dir")], commanded("pwd"))
    assert there["output"][0]["stdout"] == f"{tmp_path}/sub dir\n"
    assert long["output"][0]["stdout"] == "0123" and long["max_output_length"] == 4


def seen_actors(steps: list[Any], *, options: dict[str, Any] | None = None, **named: str) -> set[Actor]:
    seen = set()

    class Watching(InMemoryBackend):
        def edit(self, *args: Any, **options: Any) -> Any:
            seen.add(current_actor())
            return super().edit(*args, **options)

        def ls(self, path: str) -> Any:
            seen.add(current_actor())
            return super().ls(path)

    backend = Watching()
    backend.upload_files([("/plan.md", PLAN.encode())])
    answers([patch_tool(backend, **named, **(options or {})), *file_tools(backend, **named)], *steps)
    return seen


STEPS = [patched("update_file", "plan.md", "@@\n-monday\n+1\n", call="one"), called("ls", call="two")]


class WatchedShell(LocalShellBackend):
    """Its command tells whom it is run for."""

    def execute(self, command: str, *, timeout: float | None = None) -> Any:
        actor = current_actor()
        return super().execute(f"echo {actor.agent} {actor.call}; {command}", timeout=timeout)


def test_who_does_it(tmp_path: Path) -> None:
    assert seen_actors(STEPS, agent="planner") == {Actor("planner", "", "one"), Actor("planner", "", "two")}
    assert {each.call for each in seen_actors(STEPS, options={"needs_approval": lambda *_: False})} == {
        "one",
        "two",
    }
    with trace("work", group_id="chat-7"):
        assert {each.thread for each in seen_actors(STEPS)} == {"chat-7"}
    with acting(Actor(agent="team", thread="t")):
        assert {(each.agent, each.thread) for each in seen_actors(STEPS, agent="planner")} == {("team", "t")}
    (done,) = answers([shell_tool(WatchedShell(tmp_path), agent="planner")], commanded("true"))
    assert done["output"][0]["stdout"] == f"planner {done['call_id']}\n"


def test_approvals_of_the_sdk_hold() -> None:
    backend = InMemoryBackend()
    backend.upload_files([("/plan.md", PLAN.encode())])

    async def asks(context: Any, operation: ApplyPatchOperation, call: str) -> bool:
        assert call == "one"
        return operation.type == "update_file"

    async def main(approve: bool) -> Any:
        model = ScriptedModel([[STEPS[0]], [said("done")]])
        agent = Agent("planner", model=model, tools=[patch_tool(backend, needs_approval=asks)])
        result = await Runner.run(agent, "go")
        (item,) = result.interruptions
        assert content(backend, "/plan.md") == PLAN.encode()
        state = result.to_state()
        (state.approve if approve else state.reject)(item)
        return (await Runner.run(agent, state)).final_output

    assert asyncio.run(main(False)) == "done"
    assert content(backend, "/plan.md") == PLAN.encode()
    assert asyncio.run(main(True)) == "done"
    assert content(backend, "/plan.md") == PLAN.replace("monday", "1").encode()
