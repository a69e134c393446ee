"""`grep` of the API and `rg -F` and `grep -F` on the mount: the same files, the same lines.

Every other kind of volume finds what this one does (`unit/testing/test_search_matrix.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
from search_corpus import PATTERNS, PLAIN
from trees import run

import fusebackend

Found = list[tuple[str, int, str]]


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Serve a mount with the corpus, written through the kernel; half of it below a route."""
    tmp = tmp_path_factory.mktemp("grep")
    with mounts.mounted(tmp / "mnt", f"sqlite:{tmp}/volume.db", routes={"/data": "memory:"}) as server:
        for path, content in PLAIN.items():
            file = server.path / path[1:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        with fusebackend.connect(server.path) as client:
            yield server.path, client


def asked(client: Any, pattern: str, path: str = "/") -> Found:
    answer = client.grep(pattern, path)
    assert (answer.error, answer.truncated) == (None, False)
    return [(match["path"], match["line"], match["text"]) for match in answer.matches]


def printed(output: str, root: Path) -> Found:
    """Parse lines of `path NUL line : text`. A path holds no newline here."""
    found = []
    for row in output.splitlines():
        name, _, rest = row.partition("\0")
        number, _, text = rest.partition(":")
        found.append((name.removeprefix(str(root)), int(number), text))
    return sorted(found, key=lambda match: match[:2])


@pytest.mark.parametrize("program", ["rg", "grep"])
def test_the_mount_is_searched_alike(mount: tuple[Path, Any], program: str) -> None:
    root, client = mount
    words = {
        "rg": ["rg", "--no-config", "-uuu", "--text", "--encoding=none", "--no-heading", "--color=never"],
        "grep": ["grep", "-r", "--text", "--color=never"],
    }[program]
    for pattern in PATTERNS:
        output = run(*words, "-F", "-n", "--null", "-e", pattern, "--", root, ok=(0, 1))
        assert asked(client, pattern) == printed(output, root), pattern
