"""The documentation as a site: every page is in the navigation of mkdocs.yml, and lines of code fit its column.

`make docs` builds it. `test_signs.py` follows the links between pages.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
PAGES = re.findall(r"^ *- [^:\n]+: (\S+)$", NAVIGATION, re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    pages |= {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "fusebackend/SEMANTICS.md"}
    assert pages <= set(PAGES)
    assert len(PAGES) == len(set(PAGES))


def test_the_api_names_what_is_there() -> None:
    from importlib import import_module

    named = re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    for name in named:
        module, _, member = name.rpartition(".")
        try:
            found = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, module):
                continue  # of an extra that is not installed
            found = getattr(import_module(module), member)
        assert found.__doc__, name
    assert len(named) > 20


@pytest.mark.night
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: make docs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site/docs/api.html").read_text().count("doc-heading") > 100
    assert (tmp_path / "site/fusebackend/SEMANTICS.html").is_file()


def test_a_folder_in_the_architecture_is_what_its_docstring_says() -> None:
    rows = re.findall(r"^\| `fusebackend/(\w+)/` \| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "fusebackend").glob("*/__init__.py")}
    assert sorted(name for name, _ in rows) == sorted(folders)
    for name, text in rows:
        docstring = ast.get_docstring(ast.parse((ROOT / "fusebackend" / name / "__init__.py").read_text())) or ""
        assert " ".join(docstring.split()).startswith(text), name


COLUMN = 80
"""Characters of a line of code that the site shows without scrolling: its text is 688 px wide (61 rem less two
sidebars), the padding of code 16 px on each side, a character of 13.6 px type 8.2 px."""


def test_lines_of_code_fit_the_column_of_the_site() -> None:
    for page in PAGES:
        blocks = re.findall(r"^```.*?^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        assert [line for line in lines if len(line) > COLUMN] == [], page
