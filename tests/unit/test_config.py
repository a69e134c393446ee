"""The settings of a mount: TOML file, `-o` words; and the names of files that belong to a mount point."""

import json
from typing import Any

import msgspec
import pytest

from fusebackend import config
from fusebackend.base.settings import ConfigError, Table, duration_s, keys_of, settings_of
from fusebackend.config import (
    COMMAND_LINE,
    MetricsOptions,
    MountPlan,
    MountSettings,
    RouteSettings,
    by_prefix,
    read_file,
)
from fusebackend.history.masking import LogOptions
from fusebackend.history.requests import ApprovalOptions
from fusebackend.rules.rule import RouteRules
from fusebackend.shell.options import ShellOptions
from fusebackend.testing.each import each
from fusebackend.vfs.options import RouteLimits

EVERY_KEY = """
mountpoint = "/mnt/agent"
default = { url = "sqlite:agent.db?on_exists=replace", limit_bytes = "1.5 GiB", limit_files = 9, max_calls = 8 }
read_only = true
allow_other = true
ttl = "500 ms"
deadline = 5
idle = "poll"
trees = "visible"
trees_name = ".agent"
snapshots = "manual"
history = "off"
options = ["noexec", "nosuid"]
default_view = "agent"
[routes]
"/memories/" = "memory:"
notes = { url = "dir:notes", deadline = "2 s", read_only = true, hide = ["**/.env"] }
[execute]
sandbox = "none"
network = true
timeout = "2 min"
max_timeout = "3 min"
max_output_bytes = 5000
memory = "2 GiB"
processes = 64
total_memory = "8 GiB"
total_processes = 100
total_cpus = 1.5
env = { LANG = "de_DE.UTF-8" }
trees = ["branches"]
[views.agent]
rules = [{ operations = ["read"], paths = ["/a"], mode = "deny" }, { operations = ["write"], paths = ["/b"] }]
mount = "agent"
[log]
commands = "none"
[approvals]
wait = "30s"
expire = "1 h"
[metrics]
listen = "127.0.0.1:9464"
public = true
"""

SETTINGS = MountSettings(
    read_only=True,
    allow_other=True,
    ttl_s=0.5,
    deadline_s=5,
    idle="poll",
    trees="visible",
    trees_name=".agent",
    snapshots="manual",
    history="off",
    options=("noexec", "nosuid"),
    default_view="agent",
    shell=ShellOptions(
        "none", True, 120, 5000, 2 << 30, 64, {"LANG": "de_DE.UTF-8"}, 180, ["branches"], 8 << 30, 100, 1.5
    ),
    log=LogOptions("none"),
    approvals=ApprovalOptions(30, 3600),
    metrics=MetricsOptions("127.0.0.1:9464", True),
    views={
        "agent": [
            {"operations": ["read"], "paths": ["/a"], "mode": "deny"},
            {"operations": ["write"], "paths": ["/b"], "mode": "allow"},
        ]
    },
)


@pytest.fixture
def read(tmp_path):
    def parse(text: str) -> config.ConfigFile:
        (tmp_path / "agent.toml").write_text(text)
        return read_file(str(tmp_path / "agent.toml"))

    return parse


def test_every_key(read, tmp_path) -> None:
    for table in (config.ConfigFile, ShellOptions, config.RuleTable, config.ViewTable, LogOptions, ApprovalOptions):
        unread = [field.key for field in keys_of(table) if not field.choices]
        assert all(f"{key} = " in EVERY_KEY or f"[{key}" in EVERY_KEY for key in unread), table
    for field in keys_of(config.ConfigFile):
        for word in field.choices:
            assert getattr(read(f'{field.key} = "{word}"').settings, field.name) == word
    found = read(EVERY_KEY)
    assert found.mountpoint == "/mnt/agent"
    assert found.settings == msgspec.structs.replace(SETTINGS, view_mounts={"agent": f"{tmp_path}/agent"})
    routes = found.route_tables()
    assert {prefix: route.text for prefix, route in routes.items()} == {
        "/": "sqlite:agent.db?on_exists=replace&limit_bytes=1610612736&limit_files=9",
        "/memories": "memory:",
        "/notes": "dir:notes",
    }
    assert [route.limits for route in routes.values()] == [RouteLimits(), RouteLimits(2), RouteLimits(max_calls=8)]
    assert [route.rules for route in routes.values()] == [RouteRules(), RouteRules(True, ("**/.env",)), RouteRules()]
    assert [route.has for route in routes.values()] == ["", "rules", "limits"]
    assert RouteSettings(url="memory:", limit_files=9).text == "memory:?limit_files=9"


def test_an_empty_file_says_nothing(read) -> None:
    assert read("") == config.ConfigFile() and read("").settings == COMMAND_LINE
    assert read("[metrics]").settings.metrics == MetricsOptions(), "the table alone measures"
    assert [read(f"ttl = {ttl}").settings.ttl_s for ttl in ("2", "2.5", '"2 s"')] == [2, 2.5, 2]


WRONG = (
    ("readonly = true", "unknown key 'readonly'; known: mountpoint, default, routes, read_only, allow_other, "),
    ("[route]\nx = 'memory:'", "unknown key 'route'; known: "),
    ("[routes]\n'/a' = 'memory:'\ndefault = 'dir:b'", "'default' below [routes] is no setting; settings stand "
     "above the first [table], and a route is '/default/'"),
    ("[routes]\n'/a' = 'memory:'\nread_only = true", "'read_only' below [routes] is no setting; "),
    ("read_only = 'yes'", "'read_only': expected true or false, got a text"),
    ("default = 7", "'default': expected a text, got a whole number"),
    ("options = 'ro'", "'options': expected a list, got a text"),
    ("options = ['nonsense']", "unknown option '-o nonsense'; known: ro, "),
    ("[routes]\na = 'memory:'\nb = 7", "'routes.b': expected a text, got a whole number"),
    ("[routes]\na = 'memory:'\na = 'state:'", "is no TOML: "),
    ("[routes]\n'/a/' = 'memory:'\na = 'state:'", "route '/a/' is given twice"),
    ("[execute]\nnetworks = true", "unknown key 'execute.networks'; known: sandbox, network, timeout, "),
    ("execute = 1", "'execute': expected a table, got a whole number"),
    ("metrics = 1", "'metrics': expected a table, got a whole number"),
    ("[execute]\nprocesses = '7'", "'execute.processes': expected a whole number, got a text"),
    ("[execute]\ntrees = 'branches'", "'execute.trees': expected a list, got a text"),
    ("[execute.env]\nA = 'a'\nB = 7", "'execute.env.B': expected a text, got a whole number"),
    ("[routes]\na = { deadline = 5 }", "'routes.a': url is missing"),
    ("[routes]\na = { url = 'memory:', dedline = 5 }", "unknown key 'routes.a.dedline'; known: url, deadline, "),
    ("[routes]\na = { url = 'memory:', max_calls = 'x' }", "'routes.a.max_calls': expected a whole number"),
    ("[default]\nurl = 7", "'default.url': expected a text, got a whole number"),
    ("mountpoint = ", "is no TOML: "),
    ("ttl = true", "'ttl': expected a number, got true or false"),
    ("ttl = 'soon'", "'ttl': 'soon' is no length of time; write seconds, or for example '500 ms'"),
    ("deadline = 0", "a deadline of 0.0 s: give a number of seconds above 0"),
    ("trees = true", "'trees': expected a text, got true or false"),
    ("trees = 'no'", "trees = 'no': give one of hidden, visible, off"),
    ("snapshots = 'no'", "snapshots = 'no': give one of auto, manual"),
    ("trees_name = 'a/b'", "trees_name = 'a/b' holds a slash; give one name"),
    ("[execute]\nsandbox = 'docker'", "[execute]: sandbox = 'docker': give one of bubblewrap, none"),
    ("[execute]\ntimeout = 0", "[execute]: timeout must be above 0 seconds, but is 0"),
    ("[execute]\ntimeout = '2 h'", "[execute]: timeout is 7200 seconds, but max_timeout is 3600"),
    ("[execute]\nmax_timeout = 0", "[execute]: max_timeout must be above 0 seconds and finite, but is 0"),
    (f"[execute]\nmax_timeout = '{'9' * 400}'", "' is too long"),
    ("[execute]\ntimeout = 'soon'", "'execute.timeout': 'soon' is no length of time"),
    ("[execute]\nmemory = 'lots'", "'execute.memory': 'lots' is no size; write bytes, or for example '512 MiB', "),
    ("[execute]\nmemory = '1 MiB'", "[execute]: memory must be at least 16 MiB, but is 1048576 bytes"),
    ("[execute]\ntrees = ['views']", "[execute]: trees may have 'snapshots' and 'branches', but has 'views'"),
    ("[execute]\nprocesses = 0", "[execute]: processes must be at least 1, but is 0"),
    (
        "[execute]\nprocesses = 2000000",
        "[execute]: total_processes (or four times processes) can be 4194304, all that Linux has, at most; it is "
        "8000000",
    ),
    ("[execute]\ntotal_memory = '1 GiB'\nmemory = '2 GiB'",
     "[execute]: total_memory must be at least memory, 2147483648 bytes, but is 1073741824"),
    ("[execute]\ntotal_processes = 9", "[execute]: total_processes must be at least processes, 256, but is 9"),
    ("[execute]\ntotal_cpus = -1", "[execute]: total_cpus must be at least 0.01 and finite, but is -1"),
    ("[execute]\nmax_output_bytes = -1", "[execute]: max_output_bytes must not be negative, but is -1"),
    ("[execute.env]\n'A=B' = 'c'", "[execute]: env: 'A=B' can't be an environment variable"),
    ("[execute.env]\n'' = 'c'", "[execute]: env: '' can't be an environment variable"),
    ('[execute.env]\nA = "c\\u0000"', "[execute]: env: 'A' can't be an environment variable"),
    ("[routes]\n'/a/' = { url = 'memory:', deadline = 0 }", "[routes./a/]: a deadline of 0.0 s: give a number"),
    ("[routes]\n'/a/' = { url = 'memory:', deadline = 'week' }", "'routes./a/.deadline': 'week' is no length of time"),
    ("[routes]\n'/a/' = { url = 'memory:', max_calls = 0 }", "[routes./a/]: max_calls is 0: give a number from 1 to "),
    ("[routes]\n'/a/' = { url = 'memory:', max_calls = 1000000 }", "[routes./a/]: max_calls is 1000000: give a number"),
    ("[routes]\n'/a/' = { url = 'memory:', limit_bytes = 'much' }", "'routes./a/.limit_bytes': 'much' is no size"),
    ("[routes]\n'/a/' = { url = 'memory:', hide = ['**'] }", "[routes./a/]: hide = ['**'] hides the whole route"),
    ("[views.a]\nrules = [{ operations = ['read'] }]", "'views.a.rules[1]': paths is missing"),
    ("[views.a]\nrules = [{ operations = ['read'], paths = ['a'] }]", "view 'a': rule 1: path 'a' does not begin with"),
    ("[views.a]\nrules = [{ operations = ['read'], paths = ['/a'], mod = 'x' }]",
     "unknown key 'views.a.rules[1].mod'; known: operations, paths, mode"),
    ("[views.a]\nrules = [{ paths = ['/a'] }]", "'views.a.rules[1]': operations is missing"),
    ("[views.a]\nrule = []", "unknown key 'views.a.rule'; known: rules"),
    ("[views.'a/b']\nrules = []", "view 'a/b' holds a slash"),
    ("[routes]\n'/a/' = { url = 'memory:', hide = 'a' }", "'routes./a/.hide': expected a list, got a text"),
    ("default_view = 'a'", "default_view = 'a': there is no such view; there are: none"),
    ("[log]\ncommands = 'all'", "[log]: commands = 'all': give one of masked, full, none"),
    ("[log]\ncommand = 1", "unknown key 'log.command'; known: commands"),
    ("[approvals]\nwait = '2 h'", "[approvals]: wait = 7200 s: a caller waits for an hour at most"),
    ("[approvals]\nwait = 'soon'", "'approvals.wait': 'soon' is no length of time"),
    ("[approvals]\nexpire = 0", "[approvals]: expire = 0 s: give more than 0"),
    ("[approvals]\nwat = 1", "unknown key 'approvals.wat'; known: wait, expire"),
    ("[metrics]\nlistens = ':1'", "unknown key 'metrics.listens'; known: listen, public"),
    ("[metrics]\nlisten = 9464", "'metrics.listen': expected a text, got a whole number"),
    ("[metrics]\nlisten = '0.0.0.0:9464'", "[metrics]: listen = '0.0.0.0:9464': other machines may reach that"),
    ("[metrics]\nlisten = '[::]:9464'", "[metrics]: listen = '[::]:9464': other machines may reach that"),
    ("[metrics]\nlisten = '192.0.2.1:9464'", "[metrics]: listen = '192.0.2.1:9464': other machines may reach that"),
    ("[metrics]\nlisten = 'example.org:9464'", "[metrics]: listen = 'example.org:9464': give an address and a port"),
    ("[metrics]\nlisten = '9464'", "[metrics]: listen = '9464': give an address and a port"),
    ("[metrics]\nlisten = '127.0.0.1:'", "[metrics]: listen = '127.0.0.1:': '' is no port"),
    ("ttl = '" + "9" * 400 + "'", "' is too long"),
    ("[execute]\nmemory = 1" + "0" * 400, "' is too large; write less than 8 EiB"),
    ("[execute]\nmemory = '8388608 TiB'", "'execute.memory': '8388608 TiB' is too large; write less than 8 EiB"),
    ("[execute]\nmemory = " + "9" * 5000, "is no TOML: "),
    ("options = " + "[" * 5000, "is no TOML: "),
    ("[metrics]\nlisten = '127.0.0.1:65536'", "[metrics]: listen = '127.0.0.1:65536': '65536' is no port"),
)  # fmt: skip


def test_what_is_wrong_is_one_line_with_the_file_and_the_key(read, tmp_path) -> None:
    for case in each(WRONG):
        with case as (text, message):
            with pytest.raises(ConfigError) as refusal:
                read(text)
            said = str(refusal.value)
            assert message in said and said.startswith(f"'{tmp_path}/agent.toml'") and "\n" not in said


def test_no_file_of_settings(tmp_path) -> None:
    (tmp_path / "agent.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no TOML"):
        read_file(str(tmp_path / "agent.toml"))
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"):
        read_file(str(tmp_path / "missing.toml"))


def test_every_setting_says_what_it_is() -> None:
    def below(table: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
        return {table}.union(*(below(other) for field in settings_of(table) for other in field.records))

    tables = below(config.ConfigFile)
    assert len(tables) > 10 and all(issubclass(table, Table) for table in tables)
    for table in tables:
        assert all(field.setting.text or field.setting.is_inline for field in settings_of(table)), table


@pytest.mark.parametrize("plan", [
    MountPlan(mountpoint="/mnt/\udcff", urls={"/": "memory:", "/x": "dir:/\udcff"}, settings=SETTINGS, history="/h"),
    MountPlan(mountpoint="/m", settings=MountSettings(limits={"/a": RouteLimits(2, 3)}, view_mounts={"v": "/v"},
                                                      route_rules={"/": RouteRules(hide=["a"])})),
])  # fmt: skip
def test_a_plan_goes_through_json(plan: MountPlan) -> None:
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(plan))), MountPlan) == plan


def test_lengths_of_time_and_sizes() -> None:
    lengths = ((0, 0), (1, 1), (0.25, 0.25), ("1", 1), ("1 s", 1), (" 250 ms ", 0.25), ("1.5 min", 90), ("2h", 7200))
    for case in each(lengths):
        with case as (value, seconds):
            assert duration_s(value) == seconds
    for case in each(("", "s", "-1", -1, "1 week", "one", "nan", float("nan"), float("inf"), "1 s 2")):
        with case as value, pytest.raises(ConfigError, match="is no length of time"):
            duration_s(value)
    given = (("1 GiB", 1 << 30), ("1.5KiB", 1536), (" 64 mib ", 64 << 20), ("2 GB", 2 * 10**9), ("77", 77), (77, 77))
    for case in each(given):
        with case as (text, size):
            assert config.SIZE.reads(text) == size


WORDS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    ([], {}),
    (["", ","], {}),
    (["ro,allow_other", "ttl=2 s,deadline=5s", "noexec,nosuid"],
     {"read_only": True, "allow_other": True, "ttl_s": 2, "deadline_s": 5, "options": ("noexec", "nosuid")}),
    (["ro", "rw"], {}),
    (["rw,ro"], {"read_only": True}),
    (["trees=off,trees=visible", "trees_name=.agent"], {"trees": "visible", "trees_name": ".agent"}),
    (["snapshots=auto,history=on,idle=poll"], {"snapshots": "auto", "history": "on", "idle": "poll"}),
)  # fmt: skip


def test_words() -> None:
    for case in each(WORDS):
        with case as (words, settings):
            assert MountSettings().but(words) == MountSettings(**settings)
    assert MountSettings(read_only=True).but(["rw"]) == MountSettings(), "words count before what was there"
    assert MountSettings().but(["rw"], read_only=True).read_only, "and what is given beside them, before these"
    unknown = r"unknown option '-o {}'; known: ro, rw, allow_other, ttl=TIME, "
    wrong = (
        ("trees=no", r"^trees = 'no': give one of"),
        ("trees=", r"^trees = ''"),
        ("trees_name=", r"^trees_name = ''.*give"),
        ("trees_name=a/b", r"^trees_name = 'a/b'.*give one"),
        ("history=", r"^history = ''"),
        ("ttl=soon", r"^'ttl': 'soon' is"),
        ("deadline=0", r"a deadline of 0.0 s"),
        ("deadline=soon", r"^'deadline': 'soon'"),
        ("default_view=x", r"no such view"),
    )
    foreign = ("nonsense", "subtype=x", "fd=3", "allow_root", "max_read=4096", "ro=1")
    for case in each((*wrong, *((word, unknown.format(word)) for word in foreign))):
        with case as (word, message), pytest.raises(ConfigError, match=message):
            MountSettings().but([word])


def test_prefixes() -> None:
    assert by_prefix([("memories", "a"), ("/deep/er/", "b")]) == {"/memories": "a", "/deep/er": "b"}
    with pytest.raises(ConfigError, match="route '/a/' is given twice"):
        by_prefix([("/a/", "x"), ("a", "y")])
    for case in each(("", "/", "/a//b", "/../a", "~/a")):
        with case as prefix, pytest.raises(ConfigError):
            by_prefix([(prefix, "memory:")])


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
        assert config.kept_at("/mnt/agent", "db") == "/data/fusebackend/mnt-agent.db"
        assert config.kept_at("/mnt/agent", "log") == "/state/fusebackend/mnt-agent.log"
        monkeypatch.setenv("HOME", "/home/someone")
        for value in ("", "relative/data"):
            monkeypatch.setenv("XDG_DATA_HOME", value)
            assert config.kept_at("/mnt/agent", "db") == "/home/someone/.local/share/fusebackend/mnt-agent.db"


def test_a_time_out_has_a_maximum(read) -> None:
    options = read('[execute]\nmax_timeout="1 min"').settings.shell
    assert (options.timeout_s, options.max_timeout_s) == (60, 60), "which lowers what nobody has asked for"
    assert (options.seconds(None), options.seconds(59.5)) == (60, 59.5)
    for timeout in (60.001, 1e308, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^timeout must be "):
            options.seconds(timeout)
    assert read('[execute]\ntimeout="2 h"\nmax_timeout="2 h"').settings.shell.seconds(None) == 7200


def test_where_metrics_listen() -> None:
    for case in each((
        (MetricsOptions(), None),
        (MetricsOptions("127.0.0.1:9464"), ("127.0.0.1", 9464)),
        (MetricsOptions("localhost:0"), ("127.0.0.1", 0)),
        (MetricsOptions("[::1]:80"), ("::1", 80)),
        (MetricsOptions("0.0.0.0:9464", public=True), ("0.0.0.0", 9464)),
    )):  # fmt: skip
        with case as (options, address):
            assert options.address == address
