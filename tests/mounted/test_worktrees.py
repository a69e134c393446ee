"""`hook worktree`: subagents of Claude Code in branches of a mount, with real git, in the forms of its hooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from programs import ok, sh

import fusebackend
from fusebackend.testing.each import each

REPOSITORY = """
git init -q -b main . && git config user.name n && git config user.email e && git config commit.gpgsign false
printf '1\\n2\\n3\\n4\\n5\\n' > file; echo ignored > .gitignore; mkdir sub; echo b > sub/b
git add . && git commit -qm one; echo kept > ignored
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounts.mounted(tmp_path_factory.mktemp("worktrees") / "mnt", "memory:", options=["history=on"]) as server:
        yield server.path


@pytest.fixture
def repository(served: Path) -> Iterator[Path]:
    """A repository in a directory of a mount."""
    found = served / "project"
    found.mkdir()
    sh(REPOSITORY, cwd=found)
    yield found
    with fusebackend.connect(served) as files:
        files.delete_branches(*(each.name for each in files.branches()))
    mounts.empty(served)


def hook(repository: Path, event: str, *words: str, **told: str) -> str:
    given = {"session_id": "s", "transcript_path": "/t.jsonl", "cwd": str(repository), **told}
    return ok("hook", "worktree", event, *words, cwd=repository, stdin=json.dumps(given)).strip()


def created(repository: Path, name: str, *words: str) -> Path:
    return Path(hook(repository, "create", *words, name=name, hook_event_name="WorktreeCreate"))


def removed(repository: Path, path: Path, what: str = "merge") -> str:
    return hook(repository, "remove", "--on-remove", what, worktree_path=str(path))


def git(repository: Path, words: str) -> str:
    return sh(f"git {words}", cwd=repository).strip()


def branches(repository: Path) -> list[str]:
    return [branch["name"] for branch in json.loads(ok("branch", "list", "--json", cwd=repository))]


def test_two_subagents_edit_and_commit(repository: Path) -> None:
    one, two = created(repository, "agent-1"), created(repository / "sub", "feature/two")
    assert one.name == two.name == "project" and one != two
    assert (one / "ignored").read_text() == "kept\n", "what git does not know is there, too"
    sh("sed -i s/1/uno/ file && git commit -qam uno && echo dirty > dirty", cwd=one)
    sh("sed -i s/5/cinque/ file && git commit -qam cinque", cwd=two)
    sh("git checkout -qb work && git commit -q --amend -m cinco", cwd=two)
    assert git(repository, "status --short") == ""
    left = hook(repository, "start").splitlines()
    assert len(left) == 2 and left[0].startswith("The worktree 'worktree-agent-1' was left ")
    assert "a worktree" in ok("branch", "list", cwd=repository)
    removed(repository, one)
    assert git(repository, "status --short") == "M file\n?? dirty"
    assert git(repository, "log --format=%s -1 refs/fusebackend/worktree-agent-1") == "uno"
    with pytest.raises(AssertionError, match=r"'worktree-feature-two' is kept: '/project/file' .*changed"):
        removed(repository, two)
    assert branches(repository) == ["worktree-feature-two"]
    ok("branch", "merge", "worktree-feature-two", "--merge-lines", cwd=repository)
    assert (repository / "file").read_text() == "uno\n2\n3\n4\ncinque\n"
    assert git(repository, "log --format=%s -1 refs/fusebackend/worktree-feature-two") == "cinco"
    assert git(repository, "log --format=%s") == "one", "the history of the mount's own repository is its own"
    removed(repository, two, "delete")
    assert branches(repository) == [] and git(repository, "fsck --strict") == ""


def test_one_that_rebases(repository: Path) -> None:
    path = created(repository, "rebasing")
    sh("for n in 1 2 3; do echo $n > new$n; git add .; git commit -qm new$n; done", cwd=path)
    sh(
        "git checkout -q --orphan other HEAD~3; git commit -qm root; git checkout -q main; git rebase -q other",
        cwd=path,
    )
    sh("git gc -q --prune=now && git repack -adq", cwd=path)
    removed(repository, path)
    assert [(repository / f"new{number}").read_text() for number in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    commits = git(repository, "log --format=%s refs/fusebackend/worktree-rebasing")
    assert commits.split() == ["new3", "new2", "new1", "root"]
    assert git(repository, "fsck --strict") == "" and git(repository, "log --format=%s") == "one"


def test_one_that_was_killed_is_named_and_used_again(repository: Path) -> None:
    path = created(repository, "killed")
    sh("touch .git/index.lock; echo half > half", cwd=path)
    assert "'worktree-killed' was left" in hook(repository, "start")
    assert created(repository, "killed") == path and (path / "half").exists()
    assert removed(repository, path, "keep") == "" and branches(repository) == ["worktree-killed"]
    removed(repository, path)
    assert not (repository / ".git/index.lock").exists() and (repository / "half").read_text() == "half\n"


def test_in_a_directory(repository: Path, tmp_path: Path) -> None:
    path = created(repository, "plain", "--in", str(tmp_path / "trees"))
    assert path == tmp_path / "trees/plain/project"
    sh("echo x > x; git add x; git commit -qm x", cwd=path)
    removed(repository, path)
    assert (repository / "x").exists() and git(repository, "log --format=%s -1 refs/fusebackend/worktree-plain") == "x"


def test_a_nested_one_is_of_the_project(repository: Path) -> None:
    outer = created(repository, "outer")
    assert created(outer / "sub", "inner") == Path(str(outer).replace("-outer", "-inner"))


def test_settings_of_a_repository_start_no_program(repository: Path, tmp_path: Path) -> None:
    path, mark = created(repository, "evil"), tmp_path / "started"
    for where in (path, repository):
        sh(f"git config core.fsmonitor 'touch {mark}'; git config uploadpack.packObjectsHook 'touch {mark}'", where)
        for name in ("reference-transaction", "post-checkout", "pre-auto-gc"):
            (where / ".git/hooks" / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
            (where / ".git/hooks" / name).chmod(0o755)
    quiet = "git -c core.hooksPath=/dev/null -c core.fsmonitor=false"
    sh(f"echo y > y && {quiet} add y && {quiet} commit -qm y", cwd=path)
    removed(repository, path)
    assert "y" in sh(f"{quiet} log --format=%s refs/fusebackend/worktree-evil", cwd=repository)
    assert not mark.exists()


def test_what_can_not_be(repository: Path) -> None:
    for case in each([
        ("no 'name' of a worktree", {"name": ""}),
        ("no 'name' of a worktree", {"name": "../.."}),
        ("'/nowhere' is in no mount", {"name": "x", "cwd": "/nowhere"}),
        ("'/' is in no mount", {"name": "x", "cwd": "/"}),
    ]):  # fmt: skip
        with case as (text, told), pytest.raises(AssertionError, match=text):
            hook(repository, "create", **told)
    assert branches(repository) == []
    assert removed(repository, Path("/nowhere")) == ""
