"""fio and stress-ng, as in Debian, on a mount of each native volume: they verify their own work.

    FUSEBACKEND_STRESS_SECONDS=5 pytest tests/mounted/test_external_suites.py      takes so long for each kind of stress

A plain directory goes first. fio writes, reads back and compares checksums, through calls, mappings and O_DIRECT, in
several processes; stress-ng does what a file system is for, in all ways it knows.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import Serve
from profiles import amount

pytestmark = pytest.mark.mounted

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
MANY_NAMES = ("dentry", "dir", "getdent", "link", "symlink")
"""`TOGETHER` and these run in the suite, all at once, for `OPERATIONS` rounds or `TOGETHER_S`. These make thousands of
names, and remove them even after that time, so they run only where a name takes less than a millisecond."""
OPERATIONS = 30
TOGETHER_S = 2


@pytest.fixture(params=NATIVE)
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
    fio = _program("fio")
    job = tmp_path / "job.fio"
    job.write_text(FIO.format(directory=directory, kib=round(1024 * max(1.0, SECONDS))))
    said = _run(fio, "--minimal", str(job))
    assert "verify:" not in said and "error" not in said.lower(), said


def test_stress_ng_finds_nothing_wrong(directory: Path, request: pytest.FixtureRequest) -> None:
    stress = _program("stress-ng")
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


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: {name})")
    return found


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
