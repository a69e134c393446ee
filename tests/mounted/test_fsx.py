"""Random work on files of a mount, byte for byte: reads, writes, mappings, cuts, reopening, the other face, remounting.

    FUSEBACKEND_FSX_STEPS=1000000 pytest tests/mounted/test_fsx.py      takes so many steps instead of a few thousand
    FUSEBACKEND_FSX_SEED=7 pytest …                                     takes the steps of that seed

A plain directory goes first, which proves the exerciser before it accuses a mount.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from mounts import Serve
from profiles import amount

import fusebackend
from fusebackend.testing.exerciser import Exerciser
from fusebackend.testing.posix.case import fork

pytestmark = pytest.mark.mounted

STEPS = amount("FUSEBACKEND_FSX_STEPS", day=1500, night=20_000)
LIMIT_S = 60 + STEPS / 20
SEED = int(os.environ.get("FUSEBACKEND_FSX_SEED", random.SystemRandom().randrange(1 << 32)))
WORKERS = 4
SHARED_BYTES = 200_003
"""Size of the file that several processes share: the borders of their parts lie within pages."""

NATIVE = {"memory": "memory:", "sqlite": "sqlite:{tmp}/volume.db", "dir": "dir:{tmp}/files", "postgres": ""}


@pytest.fixture(params=NATIVE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return f"postgres:{request.getfixturevalue('postgres_dsn')}?volume=fsx"
    (tmp_path / "files").mkdir()
    return NATIVE[request.param].format(tmp=tmp_path)


@pytest.fixture(autouse=True)
def told() -> None:
    """Print the seed: a failure shows it, and so does a long run with `-s`."""
    print(f"seed {SEED}, {STEPS} steps")


def test_a_plain_directory(tmp_path: Path) -> None:
    Exerciser(tmp_path / "file", SEED).run(STEPS)
    _share(tmp_path / "shared", SEED, STEPS)


def test_a_file_that_others_make_larger_than_the_exerciser_would(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def grow(expected: bytes) -> bytes:
        path.write_bytes(expected + bytes(9000))
        return path.read_bytes()

    Exerciser(path, SEED, largest=5000, others={"grow": grow}).run(3000)


def test_one_process(url: str, serve: Serve) -> None:
    server = serve(url, limit_s=LIMIT_S)
    Exerciser(server.path / "file", SEED, others=_other_face(server.path)).run(STEPS)


def test_several_processes_on_one_file(url: str, serve: Serve) -> None:
    server = serve(url, limit_s=LIMIT_S)
    _share(server.path / "file", SEED, max(STEPS // 5, 200))


def test_remounting(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/volume.db"
    servers = [serve(url, at="mnt", limit_s=LIMIT_S)]

    def remount(expected: bytes) -> bytes:
        servers.pop().stop()
        servers.append(serve(url, at="mnt", limit_s=LIMIT_S))
        return expected

    path = servers[0].path / "file"
    exerciser = Exerciser(path, SEED, others=_other_face(servers[0].path))
    for _ in range(4):
        exerciser.run(STEPS // 10)
        exerciser.between(remount)


def _other_face(mount: Path) -> dict[str, Callable[[bytes], bytes]]:
    """Return changes of the file by an agent, through the same server."""
    chance = random.Random(SEED)

    def upload(expected: bytes) -> bytes:
        start = chance.randint(0, len(expected))
        data = expected[:start] + chance.randbytes(chance.randint(0, 5000)) + expected[start + 100 :]
        with fusebackend.connect(mount) as client:
            (answer,) = client.upload_files([("/file", data)])
        assert answer.error is None
        return data

    def download(expected: bytes) -> bytes:
        with fusebackend.connect(mount) as client:
            (answer,) = client.download_files(["/file"])
        assert answer.content == expected, f"seed {SEED}: an agent reads other bytes"
        return expected

    return {"upload": upload, "download": download}


def _share(path: Path, seed: int, steps: int) -> None:
    path.write_bytes(bytes(SHARED_BYTES))
    ends = [number * SHARED_BYTES // WORKERS for number in range(WORKERS + 1)]
    children = [
        fork(partial(_work, path, seed + number, part, steps)) for number, part in enumerate(itertools.pairwise(ends))
    ]
    for child in children:
        child.result(LIMIT_S)


def _work(path: Path, seed: int, part: tuple[int, int], steps: int) -> None:
    Exerciser(path, seed, part=part).run(steps)
