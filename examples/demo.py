"""What agents leave behind, to be read with `ls`, `less`, `rg` and `diff`: `make demo` runs this.

    pip install -e '.[deepagents,langgraph]'
    mkdir -p /tmp/agent && python examples/demo.py /tmp/agent /tmp/demo
    fusebackend umount /tmp/agent

Real deepagents and LangGraph agents work without an API key, for their model reads from a script. They leave files
(`files.db`), memories in a LangGraph store (`store.db`) and four conversations (`threads.db`) in the second directory.
Then these are mounted, by a server of its own that goes on when this program ends, and ten commands to try are printed.
The databases of an earlier run are replaced.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.sqlite import SqliteStore
from scripted_agent import ScriptedModel, call

from fusebackend.backends import CompositeBackend, SqliteBackend, StateBackend, StoreBackend
from fusebackend.integrations.deepagents import export
from fusebackend.text import encode_file_data

DATABASES = ("files.db", "store.db", "threads.db")
FUSEBACKEND = (sys.executable, "-m", "fusebackend")

# -- what the agents work on ---------------------------------------------------------------------------------------

PROJECT = {
    "/app/login.py": '''\
import hashlib

MAX_ATTEMPTS = 3


def may_try(attempts: int) -> bool:
    """Whether a user may enter a password once more."""
    return attempts <= MAX_ATTEMPTS


def matches(password: str, salt: str, digest: str) -> bool:
    return hashlib.sha256((salt + password).encode()).hexdigest() == digest
''',
    "/app/legacy_auth.py": '''\
"""The login of version 1, with passwords in MD5. Nothing imports it since version 2."""

import hashlib


def matches(password: str, digest: str) -> bool:
    return hashlib.md5(password.encode()).hexdigest() == digest
''',
    "/tests/test_login.py": """\
from app.login import may_try


def test_three_attempts_are_allowed():
    assert may_try(2)
    assert not may_try(3)
""",
    "/notes/todo.md": "- login: lock the account after three attempts\n- remove what version 1 left\n",
}

PROFILE = """\
Ada leads the team for accounts. She reads reports in the morning, before the stand-up at 9:30.

- She wants to know what was changed and why, before how.
- Nothing is deleted without a reason in the report.
- Mails to customers are hers to approve, always.
"""

MEMORY = """\
# What to remember

- Passwords: SHA-256 with a salt; MD5 is gone for good.
"""

REPORT = """\
# The login test

`may_try(3)` was true: after three attempts, a fourth was allowed. `attempts` counts those that were made, so the
comparison is `<`, not `<=`. One line of `app/login.py` changed, and the test covers the limit from both sides.
"""


def thinking(thought: str, text: str = "") -> list[str | dict[str, Any]]:
    """Content of a message with reasoning, as today's models give it."""
    said: list[str | dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return [{"type": "reasoning", "reasoning": thought}, *said]


FIX_THE_LOGIN_TEST = [
    call("grep", thinking("The failing test names may_try. Where is it?"), pattern="may_try", path="/project"),
    call("read_file", file_path="/project/app/login.py"),
    call(
        "edit_file",
        thinking(
            "attempts counts the attempts made. With <=, three attempts made allow a fourth: an off-by-one.",
            "The comparison is off by one.",
        ),
        file_path="/project/app/login.py",
        old_string="attempts <= MAX_ATTEMPTS",
        new_string="attempts < MAX_ATTEMPTS",
    ),
    call(
        "edit_file",
        file_path="/project/tests/test_login.py",
        old_string="    assert not may_try(3)\n",
        new_string="    assert not may_try(3)\n    assert not may_try(4)\n",
    ),
    call("write_file", "Now the report.", file_path="/reports/login-test.md", content=REPORT),
    AIMessage("The login test passes: `<` instead of `<=` in `may_try`. The report is in /reports/login-test.md."),
]

CLEAN_UP = [
    call("ls", path="/project/app"),
    call("grep", "Is version 1's login still used?", pattern="legacy_auth", path="/project"),
    call(
        "delete",
        thinking("No file imports legacy_auth, and the todo list asks to remove what version 1 left."),
        file_path="/project/app/legacy_auth.py",
    ),
    call(
        "edit_file",
        file_path="/project/notes/todo.md",
        old_string="- remove what version 1 left\n",
        new_string="",
    ),
    call("write_file", file_path="/memories/AGENTS.md", content=MEMORY),
    AIMessage("I deleted app/legacy_auth.py: nothing imports it. I also ticked it off in notes/todo.md."),
]

RELEASE_NOTES = [
    call("write_file", file_path="/reports/release-2.1.md", content="# 2.1\n\n- Three login attempts, not four.\n"),
    call(
        "send_mail",
        "The notes are written. I would send them now.",
        to="customers@example.com",
        subject="What is new in 2.1",
    ),
]

CHAT = [
    AIMessage("429 is *Too Many Requests*: the server asks you to slow down. `Retry-After` says for how long."),
    AIMessage("Wait as long as it says, then double the wait with each further 429, and add some chance to it."),
]


@tool
def send_mail(to: str, subject: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {subject}"


# -- the agents at work --------------------------------------------------------------------------------------------


def thread(name: str) -> dict[str, Any]:
    """The configuration of a conversation, which has an id as real ones have."""
    return {"configurable": {"thread_id": str(uuid.uuid5(uuid.NAMESPACE_URL, name))}}


def asked(question: str) -> dict[str, Any]:
    return {"messages": [("user", question)]}


class Agents:
    """Agents over one workspace: the project belongs to a conversation, memories and reports to all of them."""

    def __init__(self, files: SqliteBackend, store: SqliteStore, saver: SqliteSaver) -> None:
        self._saver = saver
        memories = StoreBackend(store, namespace=("memories",))
        self._backend = export(CompositeBackend(files, {"/project/": StateBackend(), "/memories/": memories}))

    def work(self, name: str, question: str, script: list[AIMessage], **options: Any) -> None:
        """Let a deepagents agent answer a question about the project, which comes with it."""
        agent = create_deep_agent(
            ScriptedModel(script=list(script)), backend=self._backend, checkpointer=self._saver, **options
        )
        project = {path: encode_file_data(text.encode()) for path, text in PROJECT.items()}
        agent.invoke({**asked(question), "files": project}, thread(name))

    def chat(self, name: str, questions: list[str], script: list[AIMessage]) -> None:
        """Let a plain LangGraph graph answer; it has no files."""
        model = ScriptedModel(script=list(script))
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_edge(START, "model")
        agent = graph.compile(checkpointer=self._saver)
        for question in questions:
            agent.invoke(asked(question), thread(name))


def fill(directory: Path) -> None:
    """Make the databases anew."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in DATABASES:
        for path in directory.glob(f"{name}*"):  # SQLite keeps -wal and -shm beside it
            path.unlink()
    with (
        SqliteBackend(directory / "files.db") as files,
        SqliteStore.from_conn_string(str(directory / "store.db")) as store,
        contextlib.closing(sqlite3.connect(directory / "threads.db", check_same_thread=False)) as connection,
    ):
        store.setup()
        store.put(("memories",), "profile", {"user": "ada", "kind": "profile", "text": PROFILE})
        store.put(("memories",), "preferences", {"theme": "dark", "language": "en", "reports": {"at": "07:00"}})
        agents = Agents(files, store, SqliteSaver(connection))
        agents.chat("chat", ["What does HTTP status 429 mean?", "And how should a client retry?"], CHAT)
        agents.work("release", "Write and publish the release notes of 2.1", RELEASE_NOTES,
                    tools=[send_mail], interrupt_on={"send_mail": True})  # fmt: skip
        agents.work("clean-up", "Please clean up the project before the release", CLEAN_UP)
        agents.work("login", "Fix the login test\n\nIt fails since yesterday: test_three_attempts_are_allowed",
                    FIX_THE_LOGIN_TEST)  # fmt: skip


# -- the mount -----------------------------------------------------------------------------------------------------


def mount(mountpoint: Path, directory: Path) -> None:
    path = quote(str(directory))
    routes = {
        "/memories/": f"store+sqlite:{path}/store.db?ns=memories",
        "/threads/": f"threads+sqlite:{path}/threads.db",
    }
    options = [f"--default=sqlite:{path}/files.db", *(f"--route={prefix}={url}" for prefix, url in routes.items())]
    done = subprocess.run([*FUSEBACKEND, "mount", str(mountpoint), *options])
    if done.returncode:
        sys.exit(done.returncode)  # it has said why


def mounted_from(directory: Path) -> str | None:
    """The mount point at which databases of this directory are mounted."""
    done = subprocess.run([*FUSEBACKEND, "status", "--json"], capture_output=True, text=True)
    for status in json.loads(done.stdout or "[]"):
        urls = [unquote(route.get("url") or "") for route in status["routes"]]
        if any(f"{directory}/{name}" in url for name in DATABASES for url in urls):
            return str(status["mountpoint"])
    return None


class Command(NamedTuple):
    shows: str
    line: str


def commands(mountpoint: Path) -> list[Command]:
    at = shlex.quote(str(mountpoint))
    login, clean_up = f"{at}/threads/@latest", f"{at}/threads/@by-time/*-please-clean-up-*"
    pager = "less" if shutil.which("less") else "cat"
    return [
        Command("the conversations, by time and title", f"ls -l {at}/threads/@by-time/"),
        Command("the latest one: what was asked, how it ended", f"cat {login}/README.md"),
        Command("what the agent thought, called and said", f"{pager} {login}/transcript.md"),
        Command("what changed in the files, step by step", f"cat {login}/changes/*.patch"),
        Command("its checkpoints: name, step, node, files", f"cut -f 1,4,6,9 {login}/checkpoints.tsv"),
        Command("its last change of a file once more", f"diff -ru {login}/history/@previous/ {login}/head/ | cat"),
        Command("which conversation deleted a file?", f"rg -l '^deleted file' {at}/threads/*/changes"),
        Command("and why?", f"grep -B 8 -A 6 'calls delete' {clean_up}/transcript.md"),
        Command("which one waits for an approval?", f"rg 'waits for a human' {at}/threads/*/README.md"),
        Command("what the agent knows of its user, an item of the store", f"cat {at}/memories/profile.md"),
    ]


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit("usage: demo.py MOUNTPOINT DIRECTORY")
    mountpoint, directory = (Path(argument).absolute() for argument in arguments)
    if (there := mounted_from(directory)) is not None:
        sys.exit(f"demo: it is mounted on {there} already; end it with 'fusebackend umount {there}'")
    fill(directory)
    mount(mountpoint, directory)
    print("\nTry these:\n")
    for command in commands(mountpoint):
        print(f"# {command.shows}\n{command.line}")
    print(f"\nThe databases are in {directory}. 'make umount', or this, ends it:")
    print(f"fusebackend umount {shlex.quote(str(mountpoint))}")


if __name__ == "__main__":
    main(sys.argv[1:])
