"""With unix tools alone: which conversation it was, what was asked, why the agent did it, and what it changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import conversations
import mounts
import pytest

pytestmark = pytest.mark.mounted

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]
THREADS = 24


@pytest.fixture(scope="module", params=KINDS)
def threads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The mount of a database with two conversations of each kind, which grows no more."""
    work = tmp_path_factory.mktemp("threads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(work / "cache"))
        if request.param == "postgres":
            with request.getfixturevalue("postgres").database() as dsn:
                yield from served(work, "postgres", dsn)
        else:
            yield from served(work, "sqlite", str(work / "threads.db"))


def served(work: Path, kind: str, where: str) -> Iterator[Path]:
    with conversations.opened(kind, where) as saver:
        conversations.fill(saver, THREADS)
    with mounts.mounted(work / "mnt", f"threads+{kind}:{where}") as server:
        yield server.path


def run(command: str, directory: Path, status: int = 0) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=directory, capture_output=True, timeout=300)
    assert done.returncode == status, done.stderr.decode() + done.stdout.decode()
    return done.stdout.decode()


def coder(threads: Path) -> Path:
    """The first of the threads in which legacy_T….py was deleted."""
    (found, *_) = run("rg -l 'deleted file mode' -g '*.patch' . | xargs rg -l 'src/legacy_'", threads).splitlines()
    return (threads / found).parents[1]


def test_a_stranger_finds_what_was_deleted_and_why(threads: Path) -> None:
    thread = coder(threads)
    file = f"/src/legacy_{thread.name}.py"
    calls = run(f"rg -l '\"delete\"' */messages -g '*.calls.json' | xargs rg -lF '{file}'", threads).splitlines()
    assert len(calls) == 1
    assert calls[0].startswith(f"{thread.name}/messages/")
    title = run("head -n 1 README.md", thread)
    assert title.startswith("# Please fix the login test of the ")
    number = os.path.basename(calls[0])[:4]
    assert "is imported by nothing since" in run(f"cat messages/{number}-ai.md", thread)
    section = run(f"sed -n '/^## {int(number)} · ai/,/^## {int(number) + 1} · /p' transcript.md", thread)
    assert "is imported by nothing since" in section
    assert file in section
    (patch,) = run(f"rg -l '^deleted file mode' changes | xargs rg -lF 'a{file}'", thread).split()
    name = os.path.basename(patch).removesuffix(".patch")
    row = run(f"rg -F '{name}' checkpoints.tsv", thread).rstrip("\n").split("\t")
    parent = run(f"awk -F'\\t' '$2 == \"{row[2]}\" || $1 == \"{row[2]}\" {{print $1}}' checkpoints.tsv", thread).strip()
    assert run(f"diff -rq history/{parent} history/{name}", thread, status=1).count("\n") == 1
    assert "-OLD = True" in run(f"cat {patch}", thread)


def test_the_changes_read_like_a_log_and_make_the_head(threads: Path, tmp_path: Path) -> None:
    thread = coder(threads)
    run(f"for patch in {thread}/changes/*; do git apply $patch || exit 1; done", tmp_path)
    assert run(f"diff -r {tmp_path} {thread}/head", thread) == ""
    log = run("cat changes/*", thread)
    assert log.count("\ncommit ") + log.startswith("commit ") == len(os.listdir(thread / "changes"))


def test_states_are_compared_by_diff(threads: Path) -> None:
    (thread, *_) = [path for path in sorted(threads.iterdir()) if b'"totals"' in (path / "state.json").read_bytes()]
    one, two = sorted(path.name for path in (thread / "history").glob("*.state.json"))[4:6]
    found = run(f"diff {one} {two}", thread / "history", status=1)
    assert found.count('"step": ') == 4, "of metadata and values, on both sides"
    assert '"totals"' not in found


def test_tools_that_walk_meet_nothing_twice(threads: Path) -> None:
    assert run("find . -type l", threads) == ""
    assert run("find . -name '@*'", threads) == ""
    assert len(os.listdir(threads)) == THREADS
    run("du -s . > /dev/null; ls -lR . > /dev/null", threads)
    assert "@" not in run("ls", threads)
