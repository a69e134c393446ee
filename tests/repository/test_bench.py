"""The command line of the benchmarks; and each runs once, as small as it can. No number is tested. `TestBootstrap` is
about what `scripts/bootstrap` installs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import graphs
import pytest
import threadcases

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import bench
import bench_hosts
import bench_postgres
import driver
import peers
import work

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


def test_there_is_a_place_for_each_table() -> None:
    tables = {each.table for each in driver.REGISTERED.values()} - {"postgres"}
    for table in (*tables, *(f"postgres {part}" for part in bench_postgres.PARTS)):
        driver.read_between(table)


@pytest.fixture
def no_caches(monkeypatch, tmp_path) -> None:
    """Leave the caches of the machine alone: other tests run beside these."""
    monkeypatch.setattr(work, "DROP_CACHES", tmp_path / "drop_caches")
    monkeypatch.setattr(os, "sync", lambda: None)


class TestBootstrap:
    """Who installs what, with stand-ins for pip and apt-get."""

    @pytest.fixture
    def clone(self, tmp_path) -> Path:
        clone = tmp_path / "clone"
        (clone / "scripts").mkdir(parents=True)
        (clone / ".venv/bin").mkdir(parents=True)
        for name in ("scripts/bootstrap", "pyproject.toml", "constraints.txt"):
            (clone / name).write_text((ROOT / name).read_text())
        self.program(clone / "scripts/bootstrap", (ROOT / "scripts/bootstrap").read_text())
        self.program(clone / ".venv/bin/python", '#!/bin/sh\n[ "$1" = -V ] || echo "$@"\n')
        for name in ("sudo", "apt-get"):
            self.program(tmp_path / "bin" / name, "#!/bin/sh\n")
        return clone

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, clone: Path, *words: str) -> str | None:
        """What pip is told to install."""
        # As a plain user's, who has no servers in it.
        plain = [each for each in os.environ["PATH"].split(":") if not each.endswith("sbin")]
        path = ":".join([str(clone.parent / "bin"), *plain])
        command = [clone / "scripts/bootstrap", *words]
        output = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        assert "docker.io" not in output or shutil.which("dockerd", path="/usr/sbin") is None
        found = re.search(r"-m pip install .* -e (\S+)$", output, re.MULTILINE)
        return found[1] if found else None

    def test_each_level_holds_the_ones_before(self, clone: Path) -> None:
        levels = [(), (), ("--demo",), (), ("--test",), ("--demo",), (), ("--bench",), ("--test",), ()]
        assert [self.run(clone, *words) for words in levels] == [
            ".", None, ".[deepagents,langgraph]", None, ".[dev]", None, None, ".[dev,bench]", None, None,
        ]  # fmt: skip

    def test_nothing_is_taken_away_when_a_requirement_changes(self, clone: Path) -> None:
        self.run(clone, "--bench")
        with open(clone / "constraints.txt", "a") as constraints:
            constraints.write("# another version\n")
        assert [self.run(clone), self.run(clone, "--test"), self.run(clone)] == [".[dev,bench]", None, None]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPTS / "bench", *words], capture_output=True, text=True, timeout=60)


class TestCommandLine:
    def test_help_lists_every_benchmark(self) -> None:
        done = run("--all", "--help")
        assert done.returncode == 0
        listed = re.findall(r"^  --([\w-]+) +\S", done.stdout, re.MULTILINE)
        assert listed == [*driver.REGISTERED]
        assert len(listed) == 16
        assert done.stderr == ""

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("--many-hosts --parts nothing", "--many-hosts: argument --parts: there is no 'nothing'; there are fast"),
            ("--many-hosts --processes 1,x", "--many-hosts: argument --processes: must be 1 or more, not 'x'"),
            ("--many-hosts --only all", "--many-hosts: argument --only: there is no 'all'; there are own, shared, hot"),
            ("--growth --sizes 5", "--growth: argument --sizes: 5 is less than 10 directories of 100"),
            ("--growth --quick --write", "--growth: --write is for all the work: without --sizes, --quick"),
            ("--rounds 0", "--mount: argument --rounds: must be 1 or more, not '0'"),
            ("--undo --sizes 1000", "--undo: unrecognized: --sizes 1000"),
            ("--nonsense", "--mount: unrecognized: --nonsense"),
            ("--large --peers s3ql", "--large: argument --peers: no peer is called s3ql; there are bindfs, rclone"),
        ],
    )  # fmt: skip
    def test_a_wrong_word_is_one_line(self, words: str, line: str, capsys) -> None:
        for more in ([], ["--all"]):
            with pytest.raises(SystemExit) as error:
                bench.main([*more, *words.split()])
            assert error.value.code == 2
            told = capsys.readouterr().err
            assert told.startswith(f"scripts/bench {line}")
            assert told.count("\n") == 1


WORDS = {
    "mount": "--quick --only SQLite,create", "large": "--quick --peers=", "parallel": "--processes 2",
    "growth": "--sizes 1000", "undo": "--only sqlite,store", "threads": "--database threads.db",
    "fsspec": "--only file,zip --mib 1", "hosts": "--changes 3", "s3": "--quick",
    "many-hosts": "--seconds 1 --processes 2 --only own --parts fast,idle,burst",
}  # fmt: skip
"""The smallest form of a benchmark; `CONSTANTS` make it smaller."""

BY_DAY = "mount"
"""A benchmark guards no promise. The day runs what all share: rounds, peers, tables; the night each of them."""

CONSTANTS = {
    "bench_mount.make_source_tree": lambda archive, files: None,
    "bench_comparisons.LOOPS": 20, "bench_comparisons.ASKED_TIMES": 1,
    "bench_agent.CALLS": 2, "bench_agent.COMMANDS": 1, "bench_agent.FILES": 20, "bench_agent.SEARCHES": 1,
    "bench_trees.SIZES": {"taken": (200,), "read": (100, 2), "policy": 100},
    "bench_trees.WRITERS": 2, "bench_trees.TAKEN": 2, "bench_trees.FILES": 100, "bench_trees.PAUSE_S": 0.1,
    "bench_postgres.DIRECTORIES": (2, 4), "bench_postgres.OPERATIONS": 2,
    "bench_postgres.RIVAL": peers.Side("JuiceFS", lambda: None, peers.PLAIN.mounted),
    "bench_postgres._rival_in": lambda server, place: peers.PLAIN.mounted(place),
    "bench_postgres.Scale": lambda quick: SimpleNamespace(files=10, tree_files=10, big_mib=1, blocks=1),
    "bench_hosts.ROWS": {row: (route, each, 1) for row, (route, each, _) in bench_hosts.ROWS.items()},
    "bench_hosts.WARM_UP": 1, "bench_hosts.READERS": 2, "bench_hosts.LATENCY_S": 0.001, "bench_hosts.FILE_BYTES": 999,
    "bench_many_hosts.MOUNTS": 1, "bench_many_hosts.IDLE_S": 0.2, "bench_many_hosts.BURST": 10,
    "bench_s3.SIZES": (2, 3), "bench_s3.READERS": 2, "bench_s3.FILE_BYTES": 999,
    "bench_s3.Scale": lambda quick: SimpleNamespace(tree_files=10, small_files=10, big_mib=8, reads=2),
    "bench_s3.rclone_command": lambda bucket, prefix, mountpoint, cache: [
        sys.executable, "-m", "fusebackend", "mount", "--foreground", "--default", bucket.url(prefix), str(mountpoint),
    ],
    "services.postgres.SETTINGS": (),  # some change it
    # No server waits until it is idle.
    "serving.Server.wait_idle": lambda server, quiet_s=3: None,
}  # fmt: skip


@pytest.mark.mounted
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == BY_DAY else pytest.mark.night) for name in driver.REGISTERED]
)
def test_each_runs_once(name: str, tmp_path, monkeypatch, capsys, no_caches, postgres, seaweedfs) -> None:
    """With the least work that its table needs, and with the servers of the tests' run."""
    servers = {
        "postgres": SimpleNamespace(database=postgres.database, directory=postgres.directory, pid=os.getpid()),
        "seaweedfs": SimpleNamespace(bucket=seaweedfs.bucket, pid=os.getpid(), service=seaweedfs),
    }
    for service, server in servers.items():
        monkeypatch.setattr(f"services.{service}.running", lambda server=server, **_: contextlib.nullcontext(server))
    for path, value in CONSTANTS.items():
        monkeypatch.setattr(path, value)
    monkeypatch.setitem(peers.PEERS, "rclone", peers.PLAIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (SCRIPTS, ROOT / "tests", ROOT / "tests/support"))))
    monkeypatch.chdir(tmp_path)
    if name == "threads":
        with graphs.sqlite_saver("threads.db") as saver:
            threadcases.plain(saver)
    rounds = [] if name in ("requests", "many-hosts", "hosts") else ["--rounds", "1"]
    bench.main([f"--{name}", "--directory", str(tmp_path), *rounds, *WORDS.get(name, "").split()])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line, after in itertools.pairwise([*lines, ""]) if line[:1] == "|" and after[:4] != "|---"]
    rows = [driver.cells(line) for line in rows if line[:4] != "|---"]
    assert rows
    assert all(any(cell[:1].isdigit() or cell == "not measured" for cell in row[1:]) for row in rows), rows
