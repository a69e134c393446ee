"""The TOML file, `-o` words, and the names of files that belong to a mount point."""

import json
import re
from dataclasses import asdict

import pytest
from for_each import for_each

from fusebackend import config
from fusebackend.base.paths import AgentPath
from fusebackend.config import (
    ConfigError,
    ConfigFile,
    ExecuteTable,
    MetricsOptions,
    MetricsTable,
    MountPlan,
    RouteTable,
    Words,
    deadline_s,
    duration_s,
    limits_of,
    metrics_options,
    parse_words,
    read_file,
    routes_by_prefix,
    shell_options,
    size_bytes,
    url_of,
)
from fusebackend.mount.options import MountOptions
from fusebackend.shell import ShellOptions
from fusebackend.vfs.calls.route_limits import RouteLimits
from fusebackend.vfs.trees_options import TreesOptions


class TestFile:
    def read(self, tmp_path, text: str) -> ConfigFile:
        path = tmp_path / "agent.toml"
        path.write_text(text)
        return read_file(str(path))

    def test_every_key(self, tmp_path) -> None:
        found = self.read(
            tmp_path,
            """
            mountpoint = "/mnt/agent"
            default = "sqlite:agent.db"
            read_only = true
            allow_other = true
            ttl = "500 ms"
            trees = "visible"
            trees_name = ".agent"
            options = ["noexec", "nosuid"]
            [routes]
            "/memories/" = "memory:"
            notes = "dir:notes"
            [execute]
            sandbox = "none"
            network = true
            timeout = "2 min"
            max_output_bytes = 5000
            memory = "2 GiB"
            processes = 64
            total_memory = "8 GiB"
            total_processes = 100
            total_cpus = 1.5
            env = { LANG = "de_DE.UTF-8" }
            trees = ["branches"]
            """,
        )
        assert found == ConfigFile(
            mountpoint="/mnt/agent",
            default="sqlite:agent.db",
            routes={"/memories/": "memory:", "notes": "dir:notes"},
            read_only=True,
            allow_other=True,
            ttl="500 ms",
            trees="visible",
            trees_name=".agent",
            options=["noexec", "nosuid"],
            execute=ExecuteTable(
                sandbox="none",
                network=True,
                timeout="2 min",
                max_output_bytes=5000,
                memory="2 GiB",
                processes=64,
                total_memory="8 GiB",
                total_processes=100,
                total_cpus=1.5,
                env={"LANG": "de_DE.UTF-8"},
                trees=["branches"],
            ),
        )
        assert shell_options(found.execute) == ShellOptions(
            "none", True, 120, 5000, 2 << 30, 64, {"LANG": "de_DE.UTF-8"}, trees=["branches"],
            total_memory_bytes=8 << 30, total_processes=100, total_cpus=1.5,
        )  # fmt: skip

    def test_an_empty_file_says_nothing(self, tmp_path) -> None:
        assert self.read(tmp_path, "") == ConfigFile()

    @pytest.mark.parametrize("ttl", ["2", "2.5", '"2 s"'])
    def test_ttl_is_a_number_or_text(self, tmp_path, ttl: str) -> None:
        assert 2 <= duration_s(self.read(tmp_path, f"ttl = {ttl}").ttl) < 3

    @for_each(
        ("text", "message"),
        [
            ("readonly = true", "unknown key 'readonly'; known: mountpoint, default, routes, read_only, allow_other, "),
            ("[route]\nx = 'memory:'", "unknown key 'route'; known: "),
            (
                "[routes]\n'/a' = 'memory:'\ndefault = 'dir:b'",
                "'default' below [routes] is no setting; settings stand "
                "above the first [table], and a route is '/default/'",
            ),
            ("[routes]\n'/a' = 'memory:'\nread_only = true", "'read_only' below [routes] is no setting; "),
            ("read_only = 'yes'", "'read_only': expected true or false, got a text"),
            ("default = 7", "'default': expected a text, got a whole number"),
            ("options = 'ro'", "'options': expected a list, got a text"),
            ("[routes]\na = 'memory:'\nb = 7", "'routes.b': expected a text, got a whole number"),
            ("[routes]\na = 'memory:'\na = 'state:'", "is no TOML: "),
            ("[execute]\nnetworks = true", "unknown key 'execute.networks'; known: sandbox, network, timeout, "),
            ("execute = 1", "'execute': expected a table, got a whole number"),
            ("[metrics]\nlistens = ':1'", "unknown key 'metrics.listens'; known: listen, public"),
            ("[metrics]\nlisten = 9464", "'metrics.listen': expected a text, got a whole number"),
            ("[execute]\nprocesses = '7'", "'execute.processes': expected a whole number, got a text"),
            ("[execute]\ntrees = 'branches'", "'execute.trees': expected a list, got a text"),
            ("[execute.env]\nA = 'a'\nB = 7", "'execute.env.B': expected a text, got a whole number"),
            ("[routes]\na = { deadline = 5 }", "'routes.a': url is missing"),
            ("[routes]\na = { url = 'memory:', dedline = 5 }", "unknown key 'routes.a.dedline'; known: url, "),
            ("[routes]\na = { url = 'memory:', max_calls = 'x' }", "'routes.a.max_calls': expected a whole number"),
            ("[default]\nurl = 7", "'default.url': expected a text, got a whole number"),
            ("mountpoint = ", "is no TOML: "),
            ("ttl = true", "'ttl': expected"),
            ("trees = true", "'trees': expected a text, got true or false"),
        ],
    )
    def test_what_is_wrong_is_one_line_with_the_file_and_the_key(self, tmp_path, text: str, message: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            self.read(tmp_path, text)
        assert message in str(refusal.value)
        assert str(refusal.value).startswith(f"'{tmp_path}/agent.toml'")
        assert "\n" not in str(refusal.value)

    def test_no_text_at_all(self, tmp_path) -> None:
        (tmp_path / "agent.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="is no TOML"):
            read_file(str(tmp_path / "agent.toml"))

    def test_a_file_that_is_not_there(self, tmp_path) -> None:
        with pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"):
            read_file(str(tmp_path / "agent.toml"))


class TestLimits:
    def test_a_route_may_say_more_than_its_url(self, tmp_path) -> None:
        text = 'default = { url = "memory:", max_calls = 8 }\n[routes]\n"/a/" = { url = "dir:/x", deadline = "2 s" }'
        (tmp_path / "agent.toml").write_text(text)
        file = read_file(str(tmp_path / "agent.toml"))
        assert url_of(file.routes["/a/"]) == "dir:/x" and url_of("state:") == "state:"
        assert limits_of("/a/", file.routes["/a/"]) == RouteLimits(deadline_s=2)
        assert file.default is not None and limits_of("/", file.default) == RouteLimits(max_calls=8)
        assert limits_of("/b/", "memory:") == RouteLimits()

    def test_what_a_route_does_not_say_is_as_for_the_others(self) -> None:
        assert RouteLimits(max_calls=3).or_else(RouteLimits(5.0, 64)) == RouteLimits(5.0, 3)

    @for_each("wrong", [{"deadline": 0}, {"deadline": "week"}, {"max_calls": 0}, {"max_calls": 10**6}])
    def test_limits_that_no_route_can_have(self, wrong: dict) -> None:
        with pytest.raises(ConfigError, match="route '/a/': "):
            limits_of("/a/", RouteTable(url="memory:", **wrong))

    def test_what_a_route_may_hold_is_in_its_url(self) -> None:
        table = RouteTable(url="sqlite:a.db?on_exists=replace", limit_bytes="1.5 GiB", limit_files=9)
        assert url_of(table) == "sqlite:a.db?on_exists=replace&limit_bytes=1610612736&limit_files=9"
        assert url_of(RouteTable(url="memory:", limit_files=9)) == "memory:?limit_files=9"
        with pytest.raises(ConfigError, match="'limit_bytes': 'much' is no size; write bytes"):
            url_of(RouteTable(url="memory:", limit_bytes="much"))

    @pytest.mark.parametrize("value", [0, "0 s", "soon"])
    def test_deadlines_that_make_no_sense(self, value: float | str) -> None:
        with pytest.raises(ConfigError):
            deadline_s(value)

    def test_a_plan_keeps_its_limits_on_the_way_to_the_server(self) -> None:
        limits = {AgentPath("/a"): RouteLimits(2, 3)}
        trees = TreesOptions("visible", "x")
        plan = MountPlan("/mnt", "memory:", {"/a": "memory:"}, deadline_s=7, limits=limits, trees=trees)
        assert MountPlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan


class TestDuration:
    @for_each(
        ("value", "seconds"),
        [(0, 0), (1, 1), (0.25, 0.25), ("1", 1), ("1 s", 1), (" 250 ms ", 0.25), ("1.5 min", 90), ("2h", 7200)],
    )
    def test_lengths_of_time(self, value: float | str, seconds: float) -> None:
        assert duration_s(value) == seconds

    @for_each("value", ["", "s", "-1", -1, "1 week", "one", "nan", float("nan"), float("inf"), "1 s 2"])
    def test_anything_else_is_refused(self, value: float | str) -> None:
        with pytest.raises(ConfigError, match="is no length of time"):
            duration_s(value)


class TestWords:
    def test_nothing_said(self) -> None:
        assert parse_words([]) == Words() == parse_words(["", ","])

    def test_all_kinds(self) -> None:
        found = parse_words(["ro,allow_other", "ttl=2 s,deadline=5s", "noexec,nosuid"])
        assert found == Words(read_only=True, allow_other=True, ttl_s=2, deadline_s=5, libfuse=("noexec", "nosuid"))

    def test_the_later_word_counts(self) -> None:
        assert parse_words(["ro", "rw"]).read_only is False
        assert parse_words(["rw,ro"]).read_only is True

    def test_acls_are_nothing_for_libfuse(self) -> None:
        options = MountOptions(extra=parse_words(["acl,noexec"]).libfuse)
        assert options.acls and "noexec" in options.words() and "acl" not in options.words()

    def test_the_trees_directory(self) -> None:
        found = parse_words(["trees=off,trees=visible", "trees_name=.agent"])
        assert found == Words(trees="visible", trees_name=".agent")

    @for_each("word", ["trees=no", "trees=", "trees_name=", "trees_name=a/b"])
    def test_a_trees_directory_that_can_not_be(self, word: str) -> None:
        with pytest.raises(ConfigError, match=r"^trees(_name)?='.*'.*give one"):
            parse_words([word])

    @for_each("word", ["nonsense", "subtype=x", "fsname=x", "fd=3", "allow_root", "max_read=4096"])
    def test_others_are_refused(self, word: str) -> None:
        with pytest.raises(ConfigError, match=f"unknown option '-o {word}'; known: ro, rw, allow_other, ttl=TIME, "):
            parse_words([word])


class TestRoutes:
    def test_prefixes_are_normalised(self) -> None:
        assert routes_by_prefix([("memories", "a"), ("/deep/er/", "b")]) == {"/memories": "a", "/deep/er": "b"}

    def test_two_that_mean_the_same(self) -> None:
        with pytest.raises(ConfigError, match="route '/a/' is given twice"):
            routes_by_prefix([("/a/", "x"), ("a", "y")])

    @for_each("prefix", ["", "/", "/a//b", "/../a", "~/a"])
    def test_prefixes_that_make_no_sense(self, prefix: str) -> None:
        with pytest.raises(ConfigError):
            routes_by_prefix([(prefix, "memory:")])


class TestFilesOfAMountPoint:
    def test_the_name_can_be_read(self) -> None:
        assert config.escape_mountpoint("/mnt/agent") == "mnt-agent"
        assert config.escape_mountpoint("/home/me/my-files") == "home-me-my_2dfiles"

    def test_no_two_share_a_name(self) -> None:
        paths = ["/a/b", "/a-b", "/a_2db", "/a_b", "/a/b/", "/a.b", "/a b", "/a\udcff", "/a\xff", "/" + "a" * 300]
        paths += ["/" + "a" * 299 + "b", "/A/b"]
        names = [config.escape_mountpoint(path) for path in paths]
        assert len(set(names)) == len(paths) - 1  # "/a/b" and "/a/b/" are the same directory
        assert all("/" not in name and len(name) <= 200 for name in names)

    def test_places_follow_the_xdg_variables(self, monkeypatch) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", "/data")
        monkeypatch.setenv("XDG_STATE_HOME", "/state")
        assert config.data_file("/mnt/agent") == "/data/fusebackend/mnt-agent.db"
        assert config.log_file("/mnt/agent") == "/state/fusebackend/mnt-agent.log"

    @pytest.mark.parametrize("value", ["", "relative/data"])
    def test_and_are_in_the_home_directory_otherwise(self, monkeypatch, value: str) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert config.data_file("/mnt/agent") == "/home/someone/.local/share/fusebackend/mnt-agent.db"


class TestExecute:
    def test_what_is_not_said_is_as_ever(self) -> None:
        assert shell_options(ExecuteTable()) == ShellOptions()

    @for_each(
        ("table", "message"),
        [
            ({"sandbox": "docker"}, "[execute]: sandbox must be 'bubblewrap' or 'none', but is 'docker'"),
            ({"timeout": 0}, "[execute]: timeout must be above 0 seconds, but is 0"),
            ({"timeout": "2 h"}, "[execute]: timeout is 7200 seconds, but max_timeout is 3600"),
            ({"max_timeout": 0}, "[execute]: max_timeout must be above 0 seconds and finite, but is 0"),
            ({"max_timeout": "9" * 400}, "[execute]: max_timeout must be above 0 seconds and finite, but is inf"),
            ({"timeout": "soon"}, "'execute.timeout': 'soon' is no length of time"),
            ({"memory": "lots"}, "'execute.memory': 'lots' is no size; write bytes, or for example '512 MiB', '1 GiB'"),
            ({"memory": "1 MiB"}, "[execute]: memory must be at least 16 MiB, but is 1048576 bytes"),
            ({"trees": ["views"]}, "[execute]: trees may have 'snapshots' and 'branches', but has 'views'"),
            ({"processes": 0}, "[execute]: processes must be at least 1, but is 0"),
            (
                {"total_memory": "1 GiB", "memory": "2 GiB"},
                "[execute]: total_memory must be at least memory, 2147483648 bytes, but is 1073741824",
            ),
            ({"total_processes": 9}, "[execute]: total_processes must be at least processes, 256, but is 9"),
            ({"total_cpus": -1}, "[execute]: total_cpus must be at least 0.01 and finite, but is -1"),
            ({"max_output_bytes": -1}, "[execute]: max_output_bytes must not be negative, but is -1"),
            ({"env": {"A=B": "c"}}, "[execute]: env: 'A=B' can't be an environment variable"),
            ({"env": {"": "c"}}, "[execute]: env: '' can't be an environment variable"),
            ({"env": {"A": "c\0"}}, "[execute]: env: 'A' can't be an environment variable"),
        ],
    )
    def test_what_no_command_could_run_with(self, table: dict, message: str) -> None:
        with pytest.raises(ConfigError) as failure:
            shell_options(ExecuteTable(**table))
        assert str(failure.value).startswith(message)

    def test_a_time_out_has_a_maximum(self) -> None:
        options = shell_options(ExecuteTable(max_timeout="1 min"))
        assert (options.timeout_s, options.max_timeout_s) == (60, 60), "which lowers what nobody has asked for"
        assert (options.seconds(None), options.seconds(59.5)) == (60, 59.5)
        for timeout in (60.001, 1e308, float("inf"), float("nan")):
            with pytest.raises(ValueError, match=r"^timeout must be "):
                options.seconds(timeout)
        assert shell_options(ExecuteTable(timeout="2 h", max_timeout="2 h")).seconds(None) == 7200

    @for_each(
        ("text", "size"),
        [("1 GiB", 1 << 30), ("1.5KiB", 1536), (" 64 mib ", 64 << 20), ("2 GB", 2 * 10**9), ("77", 77), (77, 77)],
    )
    def test_sizes(self, text: str | int, size: int) -> None:
        assert size_bytes(text) == size

    def test_a_plan_goes_through_json(self) -> None:
        execute = ShellOptions(network=True, timeout_s=7, env={"A": "b"})
        metrics = MetricsOptions("127.0.0.1", 9464)
        plan = MountPlan(
            "/mnt/agent", "memory:", {"/x": "memory:"}, words=("noexec",), execute=execute, metrics=metrics
        )
        assert MountPlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan


class TestMetrics:
    def test_nothing_is_measured_without_the_table(self) -> None:
        assert metrics_options(ConfigFile().metrics) is None

    @for_each(
        ("table", "options"),
        [
            (MetricsTable(), MetricsOptions(None)),
            (MetricsTable(listen="127.0.0.1:9464"), MetricsOptions("127.0.0.1", 9464)),
            (MetricsTable(listen="localhost:0"), MetricsOptions("127.0.0.1", 0)),
            (MetricsTable(listen="[::1]:80"), MetricsOptions("::1", 80)),
            (MetricsTable(listen="0.0.0.0:9464", public=True), MetricsOptions("0.0.0.0", 9464)),
        ],
    )
    def test_an_address(self, table: MetricsTable, options: MetricsOptions) -> None:
        assert metrics_options(table) == options

    @for_each(
        ("listen", "message"),
        [
            ("0.0.0.0:9464", "other machines may reach that"),
            ("[::]:9464", "other machines may reach that"),
            ("192.0.2.1:9464", "other machines may reach that"),
            ("example.org:9464", "give an address and a port, such as '127.0.0.1:9464'"),
            ("9464", "give an address and a port"),
            ("127.0.0.1:", "'' is no port"),
            ("127.0.0.1:65536", "'65536' is no port"),
        ],
    )
    def test_an_address_that_can_not_be(self, listen: str, message: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)) as raised:
            metrics_options(MetricsTable(listen=listen))
        assert str(raised.value).startswith(f"metrics.listen = '{listen}': ")


def test_how_long_is_waited_for_approvals(tmp_path):
    path = tmp_path / "mount.toml"
    path.write_text('[approvals]\nwait = "30s"\nexpire = "1 h"\n')
    assert config.approval_options(config.read_file(str(path)).approvals) == (30.0, 3600.0)
    path.write_text("")
    assert config.approval_options(config.read_file(str(path)).approvals) == (0.0, 24 * 3600.0)
    for text, message in (
        ("wait = '2 h'", "approvals.wait = 7200 s: a caller waits for an hour at most"),
        ("wait = 'soon'", "'approvals.wait': 'soon' is no length of time"),
        ("expire = 0", "approvals.expire = 0 s: give more than 0"),
        ("wat = 1", "unknown key 'approvals.wat'; known: wait, expire"),
    ):
        path.write_text(f"[approvals]\n{text}\n")
        with pytest.raises(ConfigError, match=re.escape(message)):
            config.approval_options(config.read_file(str(path)).approvals)
