"""The snippets of README.md and docs/, run as they stand: each in a mount namespace and a home directory of its own.

`/mnt` and `/srv` are empty there. Before a snippet runs, what the text around it presupposes is made: a mount on
/mnt/agent, a git repository in ~/src/project, databases of LangGraph. `NOT_RUN` names the rest, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mounts
import pytest
import warm
from for_each import for_each

from fusebackend import config, urls
from fusebackend.backends import PostgresBackend

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs/control-protocol.md")  # tests/mounted/test_control.py runs that
LIMIT_S = 120


class Snippet(NamedTuple):
    language: str
    code: str

    @property
    def first(self) -> str:
        return self.code.splitlines()[0]


def snippets(page: Path) -> list[Snippet]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Snippet(*each) for each in found]


SNIPPETS = list(dict.fromkeys(snippet for page in PAGES for snippet in snippets(page)))

NOT_RUN = {
    "make mount      # installs what it needs": "it would run these tests",
    "scripts/bootstrap": "it installs packages",
    "fusebackend --version": "an upgrade, of which nothing is there",
    "apt-get update": "it installs packages; packaging/debian-root does",
    "ln -s /opt/fusebackend": "it changes /sbin; packaging/debian-root does, and test_cli.py in a /sbin of its own",
    'export PATH="$PWD/.venv/bin:$PATH"': "the PATH of every other snippet here",
    ".venv/bin/pip install -e": "it installs packages",
    "fusebackend mount /mnt/agent \\\n    --route '/shared/": "it needs AWS, PostgreSQL and a registry of images",
    'eval "$(_FUSEBACKEND_COMPLETE': "for the start-up files of three shells",
    "make check": "it installs packages",
    "[project.entry-points": "for the pyproject.toml of a package; test_webdav_example.py has it installed",
}

AGENT = """fusebackend mount /mnt/agent --foreground > mount.log 2>&1 &
until mountpoint -q /mnt/agent; do sleep 0.02; done"""
MEMORIES = "mkdir -p /mnt/agent/memories; echo 'sunday: TODO' > /mnt/agent/memories/old.md"
PROJECT = "mkdir -p src/project; git init -q src/project; echo TODO > src/project/file; git -C src/project add file; \
git -C src/project -c user.name=a -c user.email=a@b commit -qm one"
STATE = "cp state/*.db ."
AGENTS = ("deepagents", "langgraph.checkpoint.sqlite", "langgraph.store.sqlite", "fusebackend.integrations.deepagents")
"""What the process imports that programs of agents are forked from (`warm.python`)."""

DEMO = f"program {ROOT}/examples/demo.py /mnt/agent demo"

VIEWS = r"""printf 'default = "memory:"\n[views.reviewer]\nrules = []\n' > views.toml
fusebackend mount /mnt/agent --config views.toml"""

APPROVALS = r"""printf '[views.agent]\nrules = [{operations=["write"], paths=["/prod/**"], mode="interrupt"}]\n' >a.toml
fusebackend mount /mnt/agent --config a.toml"""

TEN_MINUTES = [each for each in snippets(ROOT / "docs/first-ten-minutes.md") if each.first[:8] != "scripts/"]
"""They run one after another, as a reader of the page runs them."""

BEFORE = {
    "fusebackend status /mnt/agent  ": [AGENT],
    "cd /mnt/agent\n": [PROJECT, f"ln -s {ROOT} fusebackend", AGENT, MEMORIES],
    "import fusebackend\n": [AGENT],
    "import threading": [AGENT, MEMORIES],
    "import fsspec\nimport pandas": [AGENT],
    "import subprocess\nimport fsspec": ["echo 'default = \"memory:\"' > agent.toml"],
    "fusebackend exec": [AGENT, MEMORIES],
    "fusebackend mount /mnt/agent --route": [STATE],
    "fusebackend mount /mnt/agent \\\n    --route": [STATE],
    "ls -l /mnt/agent/threads/@by-time/": [DEMO],
    "cd /mnt/agent/threads": [DEMO],
    "fusebackend mount /mnt/agent  ": ["mkdir /srv/project", "grep -v postgres: agent.toml.all > agent.toml"],
    "cat /mnt/agent/.fusebackend": [AGENT],
    "fusebackend metrics": [AGENT],
    "fusebackend write --mount": [AGENT],
    "fusebackend snapshot create": [AGENT, MEMORIES, "echo plan > /mnt/agent/plan.md"],
    "from fusebackend import connect": [AGENT],
    "# The state before a call": [AGENT],
    "fusebackend view list": [VIEWS],
    "printf 'debug = true": [APPROVALS],
    "from deepagents import create_deep_agent\nfrom langgraph": [APPROVALS],
    "fusebackend mcp": [VIEWS],
    "date |": [PROJECT, AGENT, MEMORIES],
}
"""What is there before a snippet that begins so."""

SAYS = {
    "import os\nimport fusebackend\nfrom fusebackend.backends import SqliteBackend": [
        "None", "hello", "", "[{'path': '/hello.txt', 'line': 1, 'text': 'hello'}]",
    ],
    "import os\nimport fusebackend\nfrom fusebackend.backends import (\n    CompositeBackend": [],
    'import fusebackend\n\nwith fusebackend.connect("/mnt/agent") as files:  # t': ["1 /report.txt"],
    'import fusebackend\n\nwith fusebackend.connect(\n    "/mnt/agent", actor=': ["c1 write /plan.md 1"],
    'import fusebackend\n\nwith fusebackend.connect("/mnt/agent") as files:\n    with fusebackend.acting': ["c2"],
    'import fusebackend\n\nwith fusebackend.connect("/mnt/agent") as files:  # or a': [],
    'import fusebackend\n\nwith fusebackend.connect("/mnt/agent") as files:\n    with files.branch': [
        "     1\t1 /report.md"
    ],
    "import threading": ["created /memories/new.md"],
    "import fsspec\nimport pandas": ["   n", "0  1", "n"],
    "import subprocess\nimport fsspec": ["3", "['upload_files /data/n.parquet']"],
    "from deepagents": [],
    "import anthropic": [],
    "import agents": [],
    "import os\nimport fusebackend\n\n\nclass Notes": ["['copy.md'] monday: done"],
    "# The state before a call": ["diff --git a/week.md b/week.md", "deleted file mode 100644"],
    "from fusebackend import connect": ["File '/.fusebackend/snapshots/before/report.txt' not found"],
    "import pytest": [],
    "import os\nfrom fusebackend.backends import LocalShellBackend": ["1"],
    "import os\nimport subprocess\nfrom pathlib": ["     1\tmonday: call Ada", "['plan.md']"],
    "from types import SimpleNamespace": ["['/plan.md']", "monday: call Ada"],
    "import errno": ["world", " [{'path': '/hello', 'line': 1, 'text': 'world'}]"],
}  # fmt: skip
"""What a snippet in Python that begins so prints first, as its comments say."""

MODEL = """
import fusebackend, readme_state
from fusebackend.backends import InMemoryBackend as Backend
model, backend = readme_state.model(), Backend()
"""

PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider -k glob"
"""For a snippet that is a test file: some of its cases."""

AROUND = """
set -euo pipefail
# Mounts of other tests: here they are copies, which would keep their servers from ending.
awk '$3 ~ /^fuse/ {{ print $2 }}' /proc/self/mounts | tac | while IFS= read -r point; do
    umount -l "$(printf '%b' "$point")"  # a backslash stands there as \\134
done
mount -t tmpfs none /mnt
mount -t tmpfs none /srv
mkdir /mnt/agent
cd "$HOME"
trap 'cd /; ! mountpoint -q /mnt/agent || fusermount3 -u /mnt/agent; wait' EXIT
{before}
exec 9>&1
{{ {run}; }} >&9
"""


PLACES = {
    "host=db.example dbname=agents": "postgres",
    "s3://my-bucket/artifacts?endpoint=https://s3.example": "seaweedfs",
    "python:3.12-slim": "docker_engine",
}
"""Services in the snippets of backends' pages, and the fixtures whose service takes the place."""


def kept(snippets: list[Snippet], language: str, *, served: bool = False) -> list[Snippet]:
    """Those that are run: with a service of `PLACES`, or those without."""
    run = [each for each in snippets if each.language == language and each not in TEN_MINUTES]
    run = [each for each in run if not any(map(each.code.startswith, NOT_RUN))]
    return [each for each in run if (language == "sh" and any(place in each.code for place in PLACES)) == served]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Databases of LangGraph, made once."""
    import readme_state

    made = tmp_path_factory.mktemp("state")
    readme_state.make(made)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    mounts.require()
    if os.geteuid() != 0:
        pytest.skip("only root can make a mount namespace")
    (tmp_path / "agent.toml.all").write_text(whole_toml().code)
    (tmp_path / "bin").mkdir()
    warm.command(tmp_path / "bin/fusebackend", mounts.module_environment())
    warm.python(tmp_path / "bin/program", mounts.module_environment(), AGENTS)
    return tmp_path


def tomls() -> list[Snippet]:
    return kept(SNIPPETS, "toml")


def whole_toml() -> Snippet:
    (snippet,) = [each for each in tomls() if each.code.startswith("mountpoint")]
    return snippet


def run(home: Path, before: list[str], command: str) -> str:
    script = AROUND.format(before="\n".join(f"{{ {line}; }} > /dev/null" for line in before), run=command)
    environment = {
        "PATH": f"{home}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}:{ROOT / 'tests'}",
        "LC_ALL": "C.UTF-8",
    }
    words = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=home)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def names(snippets: list[Snippet]) -> list[str]:
    return [re.sub(r"[^a-z0-9]+", "-", each.code.lower())[:40].strip("-") for each in snippets]


@pytest.mark.mounted
@pytest.mark.parametrize("snippet", kept(SNIPPETS, "sh"), ids=names(kept(SNIPPETS, "sh")))
def test_a_shell_snippet(snippet: Snippet, home: Path, request: pytest.FixtureRequest) -> None:
    before = [line for first, lines in BEFORE.items() if snippet.code.startswith(first) for line in lines]
    if STATE in before:
        (home / "state").symlink_to(request.getfixturevalue("state"))
    (home / "snippet.sh").write_text(snippet.code)
    said = run(home, before, f"setsid --wait bash -eu -o pipefail {home}/snippet.sh")  # a call of its own
    if "diff -r @previous @latest" in snippet.code:
        assert ">     assert not may_try(4)" in said and '>   "next": [],' in said, said


@pytest.mark.mounted
def test_the_first_ten_minutes(home: Path) -> None:
    (home / "bin/fusebackend").unlink()  # here every command is started as a reader starts it
    commands = []
    for number, snippet in enumerate(TEN_MINUTES):
        (home / f"{number}").write_text(snippet.code)
        program = "bash -eu -o pipefail" if snippet.language == "sh" else sys.executable
        commands.append(f"echo '== {number}'; setsid --wait {program} {home}/{number}")
    said = run(home, ["mkdir agent; ln -s /mnt/agent agent/files"], "\n".join(commands))
    _, _, looked, by_python, by_mcp, undone, _ = (part.splitlines() for part in re.split(r"^== \d\n", said, flags=re.M))
    assert "memories/plan.md:1:monday: call Ada" in looked
    assert by_python[:2] == ["None", "/memories/"]
    assert by_mcp == ["20 tools", "     1\tmonday: call Ada", "False"]
    assert undone[-1] == "monday: call Ada"


@contextlib.contextmanager
def address(place: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """What a snippet has in place of a service of `PLACES`, and the environment that it needs."""
    service = request.getfixturevalue(PLACES[place])
    if PLACES[place] == "postgres":
        with service.database() as dsn:
            yield dsn, {}
    elif PLACES[place] == "seaweedfs":
        with service.bucket() as bucket:
            keys = {"AWS_ACCESS_KEY_ID": service.key, "AWS_SECRET_ACCESS_KEY": service.secret}
            yield f"s3://{bucket.name}/artifacts?endpoint={service.endpoint}", keys
    else:
        yield service.image, {"DOCKER_HOST": service.url}


SERVED = kept(SNIPPETS, "sh", served=True)


@pytest.mark.mounted
@pytest.mark.parametrize("snippet", SERVED, ids=names(SERVED))
@pytest.mark.services
def test_a_snippet_with_a_service(snippet: Snippet, home: Path, request: pytest.FixtureRequest) -> None:
    (place,) = [each for each in PLACES if each in snippet.code]
    with address(place, request) as (found, environment):
        (home / "snippet.sh").write_text(snippet.code.replace(place, found))
        exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        run(home, exports, f"setsid --wait bash -eu -o pipefail {home}/snippet.sh")


def test_a_service_is_in_each_snippet_of_one() -> None:
    assert {place for place in PLACES for each in SERVED if place in each.code} == set(PLACES)


@pytest.mark.mounted
@pytest.mark.parametrize("snippet", kept(SNIPPETS, "python"), ids=names(kept(SNIPPETS, "python")))
def test_a_python_snippet(snippet: Snippet, home: Path) -> None:
    code = (MODEL if "create_deep_agent" in snippet.code else "") + snippet.code
    (home / "snippet.py").write_text(code)
    before = [line for first, lines in BEFORE.items() if snippet.code.startswith(first) for line in lines]
    program = PYTEST if "class Test" in snippet.code else "program"
    said = run(home, before, f"{program} {home}/snippet.py").splitlines()
    (expected,) = [lines for first, lines in SAYS.items() if snippet.code.startswith(first)]
    assert said[: len(expected)] == expected


@for_each("snippet", tomls(), ids=names(tomls()))
def test_a_toml_snippet(snippet: Snippet, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(snippet.code)
    file = config.read_file(str(tmp_path / "agent.toml"))
    assert tomllib.loads(snippet.code)
    for route in file.route_tables().values():
        urls.parse(route.text, base=str(tmp_path))


@pytest.mark.parametrize("snippet", kept(SNIPPETS, "sql"), ids=names(kept(SNIPPETS, "sql")))
def test_an_sql_snippet(snippet: Snippet, postgres) -> None:
    import psycopg

    with postgres.database() as dsn, PostgresBackend(dsn, "team") as backend:
        assert backend.write("/file", "text").error is None
        with psycopg.connect(dsn, autocommit=True) as connection:
            rows = connection.execute(snippet.code).fetchall()
    assert {"team", "fusebackend"} & {row[0] for row in rows}


@for_each("first", NOT_RUN)
def test_what_is_not_run_is_still_there(first: str) -> None:
    assert any(snippet.code.startswith(first) for snippet in SNIPPETS)


def test_the_urls_of_routes_beyond_this_machine_can_be_parsed() -> None:
    (snippet,) = [each for each in SNIPPETS if "--route '/shared/=" in each.code]
    found = re.findall(r"--route '[^=]*=(.*)'", snippet.code)
    assert len(found) == 3
    for url in found:
        urls.parse(url)
    assert textwrap.dedent(snippet.code) == snippet.code
