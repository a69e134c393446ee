"""The programs of `examples/`, as their docstrings say to use them, with a model that reads from a script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import warm
from for_each import for_each
from mounts import Serve
from trees import run

pytest.importorskip("deepagents")
pytest.importorskip("langgraph.store.sqlite")

pytestmark = pytest.mark.mounted

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


AGENTS = ("graphs", "deepagents", "langgraph.checkpoint.sqlite", "langgraph.store.sqlite", "agents", "anthropic")
"""What the process imports that the programs are forked from (`warm.python`)."""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A file that runs programs in Python."""
    warm.python(tmp_path / "python", mounts.module_environment(), AGENTS)
    return tmp_path / "python"


class Program:
    """A running example: a question in, what it prints out."""

    def __init__(self, python: Path, name: str, script: list[Any], *arguments: object) -> None:
        directory = python.parent
        path = directory / "script.json"
        path.write_text(json.dumps(script))
        self.errors = directory / "errors.log"
        program = str(ROOT / "tests/support/scripted_example.py")
        command = ["setpriv", "--pdeathsig", "TERM", "--", python, program]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, name, str(path), *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}:{ROOT / 'tests'}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._limit = threading.Timer(LIMIT_S, self.process.kill)
        self._limit.start()

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return line.rstrip("\n")

    def ask(self, question: str) -> tuple[str, str]:
        """The thread of a conversation, and the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        match = re.fullmatch(r"\[([\d-]+)\] (.*)", self.line())
        assert match
        return match[1], match[2]

    def end(self) -> str:
        """What else it printed. It ends when there are no more questions, and well."""
        try:
            rest, _ = self.process.communicate(timeout=LIMIT_S)
        finally:
            self._limit.cancel()
        assert self.process.returncode == 0, self.errors.read_text()
        assert self.errors.read_text() == ""
        return rest.rstrip("\n")

    def kill(self) -> None:
        self._limit.cancel()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def program(python: Path) -> Iterator[Any]:
    running: list[tuple[Program, Path]] = []

    def start(name: str, script: list[Any], *arguments: object, mountpoint: Path) -> Program:
        running.append((Program(python, name, script, *arguments), mountpoint))
        return running[-1][0]

    yield start
    for made, mountpoint in running:
        made.kill()
        if mounts.is_listed(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", "--", str(mountpoint)], check=True, timeout=60)


MEMORY = "/memories/AGENTS.md"

CONVERSATIONS = [
    # to remember something
    [{"tool": "edit_file", "file_path": MEMORY, "old_string": "remember\n", "new_string": "remember\nIn French\n"}],
    "remembered",
    # what is remembered, after it was changed with sed
    "{memory}",
    # a report, and a draft of it in the conversation
    [{"tool": "write_file", "file_path": "/draft/outline.md", "content": "one\n"}],
    [
        {"tool": "write_file", "file_path": "/report.md", "content": "# Report\n\nAll is well.\n"},
        {"tool": "edit_file", "file_path": "/draft/outline.md", "old_string": "one", "new_string": "two"},
    ],
    "written",
    # a pipe from one route to another
    [{"tool": "execute", "command": f"tr a-z A-Z < {MEMORY} | tee /shouted.md | wc -l"}],
    "done",
]


def test_an_agent_whose_files_are_a_directory(program: Any, serve: Serve, tmp_path: Path) -> None:
    mountpoint, directory = tmp_path / "agent", tmp_path / "data"
    mountpoint.mkdir(), directory.mkdir()
    agent = program("mounted_agent", CONVERSATIONS, mountpoint, directory, "MODEL", mountpoint=mountpoint)
    assert agent.line() == f"mounted on {mountpoint}"
    assert run("ls", mountpoint) == "memories\n"

    assert agent.ask("reports are in French, remember that")[1] == "remembered"
    assert run("cat", f"{mountpoint}{MEMORY}") == "# What to remember\nIn French\n"
    run("sed", "-i", "s/French/German/", f"{mountpoint}{MEMORY}")
    assert agent.ask("what do you remember?")[1] == f"{MEMORY} # What to remember In German"

    thread_id, answer = agent.ask("write a report")
    assert answer == "written"
    assert run("cat", mountpoint / "report.md") == "# Report\n\nAll is well.\n"
    assert run("sh", "-c", f"cd {mountpoint} && grep -rl German . | sort") == "./memories/AGENTS.md\n"

    agent.ask("shout")
    assert run("cat", mountpoint / "shouted.md") == "# WHAT TO REMEMBER\nIN GERMAN\n"
    assert agent.end() == ""
    assert run("ls", mountpoint) == ""

    # Later, another process: the same files, and the drafts at each checkpoint.
    again = serve(f"sqlite:{directory}/files.db", routes={
        "/memories": f"store+sqlite:{directory}/store.db?ns=memories",
        "/threads": f"threads+sqlite:{directory}/threads.db",
    })  # fmt: skip
    assert run("cat", again.path / "shouted.md") == "# WHAT TO REMEMBER\nIN GERMAN\n"
    assert run("cat", f"{again.path}{MEMORY}") == "# What to remember\nIn German\n"
    thread = again.path / "threads" / thread_id
    assert run("cat", thread / "head" / "outline.md") == "two\n"
    with contextlib.closing(sqlite3.connect(directory / "threads.db")) as database:
        checkpoints = database.execute(
            "SELECT count(*) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''", (thread_id,)
        ).fetchone()[0]
    history = sorted(entry for entry in (thread / "history").iterdir() if entry.is_dir())
    assert len(history) == checkpoints
    outlines = [path.read_text() if (path := entry / "outline.md").exists() else "" for entry in history]
    assert outlines == sorted(outlines) and set(outlines) == {"", "one\n", "two\n"}


def test_an_agent_on_a_mount_of_another_process(program: Any, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("# Wheel\n\nIt turns.\n")
    server = serve(f"sqlite:{tmp_path}/files.db", routes={"/work": f"dir:{tmp_path}/project"})
    script = [
        [{"tool": "read_file", "file_path": "/work/README.md"}],
        [{"tool": "write_file", "file_path": "/summary.md", "content": "A wheel.\n"}],
        [{"tool": "execute", "command": "cat /summary.md /work/README.md | grep -ci wheel > /work/count"}],
        "summarised",
    ]
    agent = program("agent_on_any_mount", script, server.path, "MODEL", "summarise", mountpoint=tmp_path / "none")
    assert agent.end() == "summarised"
    assert run("cat", server.path / "summary.md") == "A wheel.\n"
    assert (tmp_path / "project" / "count").read_text() == "2\n"


def test_an_agent_without_an_api_key(tmp_path: Path, python: Path) -> None:
    assert run(python, ROOT / "examples" / "scripted_agent.py", tmp_path / "agent").splitlines() == [
        "The plan is written.",
        f"{tmp_path}/agent/memories/plan.md: 'monday: TODO\\ntuesday: done\\n'",
        f"{tmp_path}/agent/open.txt: '1\\n'",
    ]


def test_an_agent_with_rules(tmp_path: Path, python: Path) -> None:
    assert run(python, ROOT / "examples" / "agent_with_rules.py", tmp_path / "agent").splitlines() == [
        "read_file: @@ lines 1-1 of 1 @@",
        "Be kind.",
        "write_file: Error writing file '/docs/guide.md': Permission denied",
        "read_file: Error: File '/secrets/key': Permission denied",
        "read_file: Error: File '/shortcut/key': Permission denied",
        "execute: [stderr] cat: /secrets/key: Permission denied",
        "[stderr] cat: /shortcut/key: Permission denied",
        "[Command succeeded with exit code 0]",
        "write_file: Updated file /report.md",
        "The guide is read, and nothing else.",
        "report.md: 'I have read the guide.\\n'",
    ]


def test_agents_side_by_side(tmp_path: Path, python: Path) -> None:
    assert run(python, ROOT / "examples" / "agents_side_by_side.py", tmp_path / "agent").splitlines() == [
        "writer: The title is written.",
        "tester: The open points are counted.",
        "cleaner: the model is gone; branch 'cleaner' is kept: 'fusebackend branch merge cleaner' merges it",
        "plan.md: 'The plan\\n- TODO write\\n- TODO test\\n'",
        "open.txt: '2\\n'",
        "branches: cleaner",
    ]


PROGRAMS = [path.name for path in sorted((ROOT / "examples").glob("*.py")) if "sys.argv" in path.read_text()]
"""Besides them there is a backend, which is a module."""


@for_each("name", PROGRAMS)
def test_without_arguments_each_says_how_to_use_it(name: str, python: Path) -> None:
    done = subprocess.run([python, ROOT / "examples" / name], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"usage: {name} MOUNTPOINT") and done.stderr.count("\n") == 1


def test_claude_memory(serve: Serve, python: Path) -> None:
    pytest.importorskip("anthropic")
    mount = serve("memory:")
    assert run(python, ROOT / "examples/claude_memory.py", mount.path).endswith("I have noted it.\n")
    assert (mount.path / "memories/coffee.md").read_text() == "They like coffee.\nWithout milk.\n"


def test_openai_agent(serve: Serve, python: Path) -> None:
    pytest.importorskip("agents")
    mount = serve("memory:")
    printed = run(python, ROOT / "examples/openai_agent.py", mount.path)
    assert printed.startswith("Created plan.md\nUpdated plan.md\n") and "2 plan.md" in printed
    assert printed.endswith("     1\tmonday: write\n     2\ttuesday: rest\nThe plan is written.\n")
    assert (mount.path / "plan.md").read_text() == "monday: write\ntuesday: rest\n"
