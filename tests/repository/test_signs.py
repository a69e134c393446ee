"""What documents and docstrings point to is there: files, links, headings, tests, names of modules."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import typing
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each

from fusebackend.protocol.remote import Remote

ROOT = Path(__file__).parents[2]
NOT_OURS = ("fs/", "mm/", "drivers/", "include/", "Documentation/")
"""Where the kernel's own sources are."""

PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()
)  # fmt: skip
MODULES = sorted([*(ROOT / "fusebackend").rglob("*.py"), *(ROOT / "examples").glob("*.py")])
OLD = ("CHANGELOG.md",)
"""It names what there was."""

FILE = re.compile(r"(?<![\w./~$-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|svg))\b(?!:)")
EXAMPLES = frozenset(
    {
        "plan.md",
        "hello.md",
        "done.md",
        "new.md",
        "old.md",
        "todo.md",
        "copy.md",
        "AGENTS.md",
        "client.py",
        "agent.toml",
        "NAME.md",
        "profile.md",
        "transcript.md",
        "NUMBER-KIND.md",
        "0001-human.md",
        "0002-ai.md",
        "messages/0012-ai.md",
    }
)
"""Names of a user's files in the documents."""


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def is_there(name: str, source: Path) -> bool:
    """From the root, from the package, beside or below the file that names it; or anywhere, for a plain file name."""
    below = [ROOT, ROOT / "fusebackend", *source.parents]
    if any((directory / name).exists() for directory in below if directory.is_relative_to(ROOT)):
        return True
    return "/" not in name and source.suffix == ".py" and name in BASENAMES


BASENAMES = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}


@functools.cache
def prose(path: Path) -> str:
    """A document without its snippets of other people's files; of a module, its docstrings and comments."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    docstrings = [found for value, found in re.findall(r'(= |: |\(|b)?"""(.*?)"""', text, re.DOTALL) if not value]
    return "\n".join([*docstrings, *re.findall(r"(?:^|\s)# (.*)", text)])


NOW = [path for path in [*PAGES, *MODULES] if path.name not in OLD]
"""Without what tells a history, which names what has gone."""


@for_each("path", NOW, ids=names(NOW))
def test_files_that_are_named_are_there(path: Path) -> None:
    found = {name for name in FILE.findall(prose(path)) if not name.startswith(NOT_OURS) and name not in EXAMPLES}
    assert {name for name in found if not is_there(name, path)} == set()


@for_each("path", [*PAGES, *MODULES], ids=names([*PAGES, *MODULES]))
def test_no_document_is_cited_that_is_not_here(path: Path) -> None:
    assert re.findall(r"\b(?:DESIGN|STYLE)\b|\(facts\b|\bfacts:", prose(path)) == []


@for_each("path", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings], link


FOLDERS = sorted(path for path in MODULES if path.name == "__init__.py")


@for_each("path", FOLDERS, ids=names(FOLDERS))
def test_a_folders_docstring_maps_all_that_is_in_it(path: Path) -> None:
    map_ = ast.get_docstring(ast.parse(path.read_text())) or ""
    modules = {each.name for each in path.parent.glob("[!_]*.py")}
    folders = {f"{each.parent.name}/" for each in path.parent.glob("*/__init__.py")}
    assert {name for name in modules | folders if name not in map_} == set()


def test_every_race_with_the_kernel_names_what_closes_it_and_a_test() -> None:
    page = (ROOT / "docs/kernel-races.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| race ")]
    assert len(rows) > 20
    for row in rows:
        _, race, function, file, test, _ = row.split(" | ".strip()) if row.count("|") == 5 else pytest.fail(row)
        assert race and function.strip() and "fusebackend/" in file, row
        assert "test" in test or "none of its own" in test, row


@for_each("path", PAGES, ids=names(PAGES))
def test_a_name_behind_a_file_is_in_that_file(path: Path) -> None:
    for file, name in re.findall(r"`((?:fusebackend|tests)/[\w/.]+\.py)` \(`(\w+)`\)", path.read_text()):
        assert re.search(rf"\b(?:def|class) {name}\b|^{name}\b", (ROOT / file).read_text(), re.MULTILINE), (file, name)


def test_the_guide_for_backends_names_every_hook_that_a_mount_asks_for() -> None:
    page = (ROOT / "docs/backends.md").read_text()
    table = page.partition("### Optional hooks")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))
    asked: set[str] = set()
    for module in (ROOT / "fusebackend/remote").glob("*.py"):
        asked |= set(re.findall(r'getattr\((?:[\w.]*backend|asked), "(\w+)"', module.read_text()))
    assert asked >= {"ttl_s", "exact_sizes"}
    assert asked - documented == set()


def test_the_guide_for_backends_names_every_primitive() -> None:
    page = (ROOT / "docs/backends.md").read_text()
    table = page.partition("\n## Remote files")[2].partition("\n### ")[0]
    documented = set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE))
    abstract: Any = typing.cast(Any, Remote).__abstractmethods__
    assert documented == set(abstract)
