"""`fusebackend hook`: settings of coding agents, and what a hook tells a mount. The calls themselves are tested on
mounts (`tests/mounted/test_history_cli.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from for_each import for_each

from fusebackend.cli import hook
from fusebackend.cli.main import main

# As https://code.claude.com/docs/en/hooks and https://developers.openai.com/codex/hooks show them.
CLAUDE_PRE = {
    "session_id": "abc123",
    "transcript_path": "/home/user/.claude/projects/x/transcript.jsonl",
    "cwd": "/home/user/my-project",
    "permission_mode": "default",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "rm -rf /repo\n", "description": "Remove it", "timeout": 120000},
    "tool_use_id": "toolu_01ABC123",
}
CODEX_PRE = {
    "session_id": "019a",
    "turn_id": "3",
    "transcript_path": None,
    "cwd": "/home/user/my-project",
    "hook_event_name": "PreToolUse",
    "model": "gpt-5",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": {"command": "git clean -fdx"},
    "tool_use_id": "call_abc",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ok(*words: str) -> str:
    done = CliRunner().invoke(main, ["hook", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def commands(settings: dict[str, Any], event: str) -> list[str]:
    return [each["command"] for group in settings["hooks"][event] for each in group["hooks"]]


@pytest.mark.parametrize(
    ("agent", "file", "events"),
    [
        ("claude-code", ".claude/settings.json", {"PreToolUse", "PostToolUse", "PostToolUseFailure"}),
        ("codex", ".codex/hooks.json", {"PreToolUse", "PostToolUse"}),
    ],
)
def test_install_in_a_new_file(home: Path, agent: str, file: str, events: set[str]) -> None:
    assert f"added the hooks to '{home / file}'" in ok(agent, "--install")
    settings = json.loads((home / file).read_text())
    assert settings == json.loads(ok(agent, "--print"))
    assert set(settings["hooks"]) == events
    for event in events:
        (command,) = commands(settings, event)
        assert command.endswith(f" hook run {'pre' if event == 'PreToolUse' else 'post'} --agent {agent}")
    assert list((home / file).parent.iterdir()) == [home / file]  # nothing was there to be kept


def test_install_keeps_what_is_there(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    other = {"matcher": "Bash", "hooks": [{"type": "command", "command": "./check.sh"}]}
    mine = {"permissions": {"deny": ["Read(./.env)"]}, "note": "größe", "hooks": {"PreToolUse": [other], "Stop": []}}
    before = json.dumps(mine, indent=4, ensure_ascii=False)
    path.write_text(before)
    path.chmod(0o640)
    ok("claude-code", "--install")
    settings = json.loads(path.read_text())
    assert settings["permissions"] == mine["permissions"]
    assert settings["note"] == "größe"
    assert settings["hooks"]["Stop"] == []
    assert settings["hooks"]["PreToolUse"][0] == other
    assert len(settings["hooks"]["PreToolUse"]) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = path.with_name("settings.json.before-fusebackend")
    assert backup.read_text() == before


def test_install_twice_is_once(home: Path) -> None:
    ok("codex", "--install")
    path = home / ".codex/hooks.json"
    first, inode = path.read_text(), path.stat().st_ino
    assert "already in" in ok("codex", "--install")
    assert (path.read_text(), path.stat().st_ino) == (first, inode)
    assert list(path.parent.iterdir()) == [path]


def test_install_replaces_hooks_of_another_version(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    old = {"type": "command", "command": "/old/place/fusebackend hook run pre", "timeout": 60}
    theirs = {"type": "command", "command": "./check.sh"}
    group = {"matcher": "Bash", "hooks": [old, theirs]}
    path.write_text(json.dumps({"hooks": {"PreToolUse": [group, {"matcher": "*", "hooks": [old]}]}}))
    ok("claude-code", "--install")
    settings = json.loads(path.read_text())
    assert settings["hooks"]["PreToolUse"][0] == {"matcher": "Bash", "hooks": [theirs]}
    assert sum("fusebackend" in each for each in commands(settings, "PreToolUse")) == 1
    assert "already in" in ok("claude-code", "--install")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{nonsense", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"hooks": []}', "have a form that is not known here"),
        ('{"hooks": {"PreToolUse": {}}}', "have a form that is not known here"),
    ],
)
def test_strange_settings_are_left_as_they_are(home: Path, text: str, why: str) -> None:
    is_refused(home, text.encode(), why)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1"])
def test_settings_in_another_encoding_are_left_as_they_are(home: Path, encoding: str) -> None:
    is_refused(home, '{"theme": "größer"}'.encode(encoding), "is no JSON in UTF-8, and was left as it is")


def is_refused(home: Path, content: bytes, why: str) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_bytes(content)
    done = CliRunner().invoke(main, ["hook", "claude-code", "--install"])
    assert done.exit_code == 1
    assert why in done.output
    assert len(done.output.splitlines()) == 1
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_project_and_another_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("claude-code", "--install", "--project")
    assert (home / ".claude/settings.json").exists()  # the current directory is `home`
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    ok("codex", "--install")
    assert (home / "elsewhere/hooks.json").exists()


def test_a_link_to_settings_stays_one(home: Path) -> None:
    (home / ".claude").mkdir()
    (home / "dotfiles.json").write_text("{}")
    (home / ".claude/settings.json").symlink_to(home / "dotfiles.json")
    ok("claude-code", "--install")
    assert (home / ".claude/settings.json").is_symlink()
    assert "PreToolUse" in (home / "dotfiles.json").read_text()


def test_worktrees(home: Path) -> None:
    for words, commands_of in {
        (): ("create", "remove --on-remove keep"),
        ("--on-remove", "merge", "--in", "/some where"): ("create --in '/some where'", "remove --on-remove merge"),
    }.items():
        settings = json.loads(ok("claude-code", "--print", "--worktrees", *words))
        found = [commands(settings, event) for event in ("WorktreeCreate", "WorktreeRemove", "SessionStart")]
        assert [each.partition(" hook worktree ")[2] for (each,) in found] == [*commands_of, "start"]
    for word in ("merge", "delete"):
        ok("claude-code", "--install", "--project", "--worktrees", "--on-remove", word)
        settings = json.loads((home / ".claude/settings.json").read_text())
        (removing,) = commands(settings, "WorktreeRemove")
        assert removing.endswith(f"--on-remove {word}") and len(commands(settings, "PreToolUse")) == 1
    for words in (
        ["codex", "--print", "--worktrees"],
        ["claude-code", "--install", "--worktrees"],
        ["claude-code", "--print", "--on-remove", "merge"],
        ["claude-code", "--print", "--in", "/some"],
    ):
        assert CliRunner().invoke(main, ["hook", *words]).exit_code == 2


def test_install_or_print(home: Path) -> None:
    for words in ([], ["--install", "--print"]):
        done = CliRunner().invoke(main, ["hook", "codex", *words])
        assert done.exit_code == 2
        assert "say which" in done.output


@for_each(
    ("told", "expected"),
    [
        (CLAUDE_PRE, "Bash: rm -rf /repo"),
        (CODEX_PRE, "Bash: git clean -fdx"),
        ({"tool_name": "Write", "tool_input": {"file_path": "/a.md", "content": "x" * 1000}}, "Write: /a.md"),
        ({"tool_name": "TodoWrite", "tool_input": {"todos": []}}, "TodoWrite"),
        ({"tool_name": "Bash", "tool_input": {"command": "x" * 1000}}, "Bash: " + "x" * 194),
        ({"tool_input": "odd"}, "tool"),
    ],
)
def test_a_title_names_the_tool_and_its_object(told: dict[str, Any], expected: str) -> None:
    assert hook.title(told) == expected


@for_each("given", ["", "nonsense", "[]", '"text"', json.dumps({"cwd": 3}), json.dumps(CLAUDE_PRE)])
@for_each("when", ["pre", "post"])
def test_a_hook_never_disturbs_its_agent(given: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_mountpoints", lambda directory: ["/no/mount"])
    done = CliRunner().invoke(main, ["hook", "run", when, "--agent", "codex"], input=given)
    assert (done.exit_code, done.output) == (0, "")


def test_imports_take_nothing_of_what_a_hook_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much to do an import takes longer than a hook waits for a mount."""
    begun: list[str] = []

    class Slow(ModuleType):
        def __getattr__(self, name: str) -> Any:
            time.sleep(2 * hook.RUN_TIMEOUT_S)
            files = SimpleNamespace(begin_call=lambda title, **_: begun.append(title))
            return lambda mountpoint, view: contextlib.nullcontext(files)

    monkeypatch.setattr(hook, "RUN_TIMEOUT_S", 0.2)
    monkeypatch.setattr(hook, "_mountpoints", lambda directory: ["/mnt"])
    monkeypatch.setitem(sys.modules, "fusebackend.control.client.client", Slow("client"))
    assert CliRunner().invoke(main, ["hook", "run", "pre"], input=json.dumps(CLAUDE_PRE)).exit_code == 0
    assert len(begun) == 1


def test_the_agent_is_above_the_shell_that_runs_the_hook(tmp_path: Path) -> None:
    script = tmp_path / "who.py"
    script.write_text("from fusebackend.cli.hook import agent_pid; print(agent_pid())")
    line = f"{sys.executable} {script} # hook run pre; and more, so that the shell does not exec\n:"
    environment = {**os.environ, "PYTHONPATH": str(Path(hook.__file__).parents[2])}
    found = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == os.getpid()


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not run in a virtual environment")
def test_a_virtual_environment_need_not_be_active_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(sys.prefix, "bin/fusebackend")
    link = tmp_path / "fusebackend"  # as pipx and uv make it, in a directory that is in everybody's PATH
    link.symlink_to(own)
    for path, command in ((own, str(own)), (link, "fusebackend")):
        monkeypatch.setattr(sys, "argv", [str(path)])
        monkeypatch.setenv("PATH", str(path.parent))
        printed = CliRunner().invoke(main, ["hook", "claude-code", "--print"])
        assert f'"{command} hook run pre --agent claude-code"' in printed.output
