"""fio and stress-ng, as in Debian, on a mount of each native volume: they verify their own work.

    FUSEBACKEND_STRESS_SECONDS=5 pytest tests/mounted/test_external_suites.py      takes so long for each kind of stress

At night a plain directory goes first. fio writes, reads back and compares checksums, through calls, mappings and
O_DIRECT, in several processes; stress-ng does what a file system is for, in all ways it knows.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trees
from mounts import Serve
from profiles import amount

import fusebackend
from fusebackend.testing.exerciser import Exerciser
from fusebackend.testing.posix.case import ForkedChild

SECONDS = amount("FUSEBACKEND_STRESS_SECONDS", day=0, night=5)
LIMIT_S = 300.0

NATIVE = {
    "plain": "",
    "memory": "memory:",
    "sqlite": "sqlite:{tmp}/volume.db",
    "dir": "dir:{tmp}/files",
    "postgres": "",
}

FIO = """
[global]
directory={directory}
size={kib}k
verify_state_save=0
verify=crc32c
verify_fatal=1
randrepeat=1
[calls]
rw=randwrite
bs=4k
fsync=64
[mapped]
ioengine=mmap
rw=randwrite
bs=4k
[uneven]
ioengine=psync
rw=randrw
bsrange=512-37k
bs_unaligned=1
numjobs=2
[direct]
ioengine=psync
direct=1
rw=randwrite
bs=4k
[in-a-row]
ioengine=pvsync
rw=write
bs=128k
end_fsync=1
"""

STRESSORS = (
    "access", "chdir", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep", "dirmany", "dup", "fallocate",
    "fcntl", "filename", "flock", "fpunch", "fstat", "getdent", "handle", "hdd", "inotify", "io", "iomix", "lease",
    "link", "locka", "lockf", "lockofd", "mknod", "open", "rename", "symlink", "sync-file", "touch", "utime", "xattr",
)  # fmt: skip
"""The tests of stress-ng's class "filesystem" that work on files of a mount."""

TOGETHER = ("access", "chmod", "fcntl", "rename", "utime", "xattr")
MANY_NAMES = ("dentry", "dir", "getdent")
"""`TOGETHER` and these run in the suite, all at once, for `OPERATIONS` rounds or `TOGETHER_S`. These make many names:
they run only where a name takes less than a millisecond. `link` and `symlink`, which make thousands, run at night."""
OPERATIONS = 30
TOGETHER_S = 1


BY_DAY = ("sqlite", "dir", "postgres")


@pytest.fixture(params=[name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name in NATIVE])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a mount of each kind."""
    (tmp_path / "files").mkdir()
    if request.param == "plain":
        yield tmp_path / "files"
        return
    url = NATIVE[request.param].format(tmp=tmp_path)
    if request.param == "postgres":
        url = f"postgres:{request.getfixturevalue('postgres_dsn')}?volume=stress"
    serve: Serve = request.getfixturevalue("serve")  # after the database, and so ended before it
    yield serve(url).path


def test_fio_reads_what_it_has_written(directory: Path, tmp_path: Path) -> None:
    fio = trees.tool("fio")
    job = tmp_path / "job.fio"
    job.write_text(FIO.format(directory=directory, kib=round(1024 * max(1.0, SECONDS))))
    said = _run(fio, "--minimal", str(job))
    assert "verify:" not in said and "error" not in said.lower(), said


def test_stress_ng_finds_nothing_wrong(directory: Path, request: pytest.FixtureRequest) -> None:
    stress = trees.tool("stress-ng")
    together = TOGETHER if "postgres" in request.node.name else TOGETHER + MANY_NAMES
    if SECONDS:
        runs = [[f"--{name}", "2", "--timeout", f"{SECONDS:.0f}"] for name in STRESSORS]
    else:
        each = [word for name in together for word in (f"--{name}", "1", f"--{name}-ops", str(OPERATIONS))]
        runs = [[*each, "--timeout", str(TOGETHER_S)]]
    wrong: list[str] = []
    for number, words in enumerate(runs):
        home = directory / str(number)
        home.mkdir()
        said = _run(stress, *words, "--verify", "--temp-path", str(home), failing=wrong)
        wrong += [line for line in said.splitlines() if ": fail:" in line or ": error:" in line]
        shutil.rmtree(home)
    assert not wrong, "\n".join(wrong[:20])


def _run(*command: str, failing: list[str] | None = None) -> str:
    """Run a program and return its output. If it fails the test fails, or the failure is added to `failing`."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        words = f"{' '.join(command[:2])} ended with {done.returncode}: {said}"
        if failing is None:
            pytest.fail(words)
        failing.append(words)
    return said


# --------------------------------------------------------------------------------------------------------------
# Random work on files of a mount, byte for byte: reads, writes, mappings, cuts, reopening, the other face, remounting.
#
#     FUSEBACKEND_FSX_STEPS=1000000 pytest tests/mounted/test_external_suites.py    takes so many steps
#     FUSEBACKEND_FSX_SEED=7 pytest …                                               takes the steps of that seed
# --------------------------------------------------------------------------------------------------------------

STEPS = amount("FUSEBACKEND_FSX_STEPS", day=800, night=20_000)
EXERCISED_S = 60 + STEPS / 20
SEED = int(os.environ.get("FUSEBACKEND_FSX_SEED", random.SystemRandom().randrange(1 << 32)))
WORKERS = 4
SHARED_BYTES = 200_003
"""Size of the file that several processes share: the borders of their parts lie within pages."""

EXERCISED = {"memory": "memory:", "sqlite": "sqlite:{tmp}/volume.db", "dir": "dir:{tmp}/files", "postgres": ""}


@pytest.fixture(params=EXERCISED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return f"postgres:{request.getfixturevalue('postgres_dsn')}?volume=fsx"
    (tmp_path / "files").mkdir()
    return EXERCISED[request.param].format(tmp=tmp_path)


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
    server = serve(url, limit_s=EXERCISED_S)
    Exerciser(server.path / "file", SEED, others=_other_face(server.path)).run(STEPS)


def test_several_processes_on_one_file(url: str, serve: Serve) -> None:
    server = serve(url, limit_s=EXERCISED_S)
    _share(server.path / "file", SEED, max(STEPS // 5, 200))


def test_remounting(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/volume.db"
    servers = [serve(url, at="mnt", limit_s=EXERCISED_S)]

    def remount(expected: bytes) -> bytes:
        servers.pop().stop()
        servers.append(serve(url, at="mnt", limit_s=EXERCISED_S))
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
        ForkedChild(partial(_work, path, seed + number, part, steps))
        for number, part in enumerate(itertools.pairwise(ends))
    ]
    for child in children:
        child.result(EXERCISED_S)


def _work(path: Path, seed: int, part: tuple[int, int], steps: int) -> None:
    Exerciser(path, seed, part=part).run(steps)
