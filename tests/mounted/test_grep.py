"""`grep` of the API and `rg -F` and `grep -F` on the mount: the same files, the same lines."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
from eventually import eventually
from kinds import KINDS, KINDS_BY_DAY
from search_corpus import PATTERNS, PLAIN
from trees import run

import fusebackend

Found = list[tuple[str, int, str]]


@pytest.fixture(scope="module", params=KINDS_BY_DAY)
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Serve a mount with the corpus, written through the kernel; half of it below a route."""
    kind = KINDS[request.param]
    tmp = tmp_path_factory.mktemp(request.param)
    (tmp / "files").mkdir()
    with mounts.mounted(tmp / "mnt", kind.url.format(tmp=tmp), routes={"/data": "memory:"}) as server:
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


def test_a_search_while_files_come_and_are_indexed(serve: mounts.Serve, tmp_path: Path) -> None:
    """A search finds every match that existed when it began, indexed or not yet."""
    server = serve(f"sqlite:{tmp_path}/volume.db")
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefgh", k=6)) for _ in range(500)]
    with fusebackend.connect(server.path) as client:
        for number in range(600):
            directory = server.path / f"d{number % 7}"
            directory.mkdir(exist_ok=True)
            (directory / f"{number}.txt").write_text(" ".join(chance.choices(words, k=50)) + f"\nmarker{number}x\n")
            if number % 20 == 0:
                for earlier in (number, number // 2, 0):
                    assert [match[2] for match in asked(client, f"marker{earlier}x")] == [f"marker{earlier}x"]
        mounts.sync(server.path)
        db = sqlite3.connect(f"file:{tmp_path}/volume.db?mode=ro", uri=True)
        eventually(lambda: not (db.execute("SELECT count(*) FROM unindexed").fetchone()[0]), 30)
        db.close()
        output = run("grep", "-rn", "--null", "-F", "-e", words[0], "--", server.path, ok=(0, 1))
        assert asked(client, words[0]) == printed(output, server.path)
        for number in range(0, 600, 50):
            assert [match[2] for match in asked(client, f"marker{number}x")] == [f"marker{number}x"]
