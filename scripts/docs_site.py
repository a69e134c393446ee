"""A hook of mkdocs: the site has the files of the repository at their own paths, those outside of docs/ as well.

So relative links hold in both, and nothing rewrites them. Pages are the Markdown files of docs/ and those that the
navigation in mkdocs.yml names; any other file is there if a page links to it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Put each file to its path in the repository. What the theme and plugins have added stays."""
    theirs = [file for file in files if not Path(file.abs_src_path or "/").is_relative_to(config.docs_dir)]
    paths = {path.relative_to(ROOT) for path in Path(config.docs_dir).rglob("*") if path.is_file()}
    paths |= {Path(page) for page in _pages(config.nav)}
    paths |= {path for page in list(paths) if page.suffix == ".md" for path in _linked(page)}
    ours = [File.generated(config, str(path), abs_src_path=str(ROOT / path)) for path in sorted(paths)]
    return Files([*theirs, *ours])


def _pages(nav: Any) -> Iterator[str]:
    """Yield the paths in a navigation of mkdocs: a list of paths, and of objects from a title to a path or a list."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(item)


def _linked(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to and that are no pages: examples, the license."""
    for target in LINK.findall((ROOT / page).read_text()):
        path = (ROOT / page.parent / target).resolve()
        if path.is_file() and path.suffix != ".md":
            yield path.relative_to(ROOT)
