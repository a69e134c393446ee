"""The group of commands: its help, its errors, and the completion of words."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from commands import MOUNT, commands
from for_each import for_each

from fusebackend.backends import InMemoryBackend
from fusebackend.cli import main, target

COMMANDS = [
    "mount", "umount", "status", "backends", "ls", "stat", "read", "write", "edit", "grep", "glob", "rm", "mv",
    "upload", "download", "watch", "exec",
]  # fmt: skip


@pytest.fixture
def command(monkeypatch):
    with InMemoryBackend() as files, commands(files, monkeypatch) as command:
        files.upload_files([("/dir/a", b""), ("/dir/b c", b""), ("/file", b"")])
        yield command


def test_the_help_names_every_command_once(command):
    lines = command.ok("--help").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS] == COMMANDS


@for_each("name", COMMANDS)
def test_every_command_explains_itself(command, name):
    assert command.ok(name, "--help").startswith(f"Usage: fusebackend {name} ")


def test_a_command_that_is_none(command):
    assert command.wrong("list") == "No such command 'list'."


def test_every_url_that_can_be_mounted_is_explained(command):
    schemes = {found["scheme"]: found for found in command.json("backends")}
    assert set(schemes) >= {"sqlite", "memory", "dir", "shell", "state", "python"}
    assert schemes["shell"]["execute"] is True and schemes["memory"]["features"]["durable"] is False
    said = command.ok("backends")
    assert all(found["form"] in said for found in schemes.values())
    parameters = {parameter for found in schemes.values() for parameter in found["parameters"] or ()}
    assert all(re.search(rf"^  {parameter} +\w", said, re.MULTILINE) for parameter in parameters)


def test_help_loads_nothing_heavy():
    """Neither that of the group nor that of a command which no mount needs."""
    script = f"""
import sys
from fusebackend.cli.main import main
heavy = {{'msgspec', 'rich', 'pyfuse3', 'trio', 'wcmatch', 'subprocess', 'sqlite3'}}
for words in [[], *([name] for name in {COMMANDS[4:]})]:
    try:
        main([*words, '--help'], prog_name='fusebackend')
    except SystemExit as end:
        assert end.code == 0, (words, end.code)
    assert heavy.isdisjoint(sys.modules), (words, heavy & set(sys.modules))
    heavy -= {{'msgspec', 'subprocess'}}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@for_each("entry", ["main.main", "mount_helper.mount_main"])
def test_streams_that_are_closed_are_empty_ones(entry, tmp_path):
    """And nothing that is opened later gets their numbers, to which libraries print."""
    script = f"""
import atexit, os, sys
from fusebackend.cli import main, mount_helper
def look():
    with open({str(tmp_path / "said")!r}, "w") as file:
        print(repr(sys.stdin.read()), file.fileno() > 2, os.get_inheritable(1), file=file)
atexit.register(look)
sys.argv[1:] = ["--help"]
{entry}()
"""
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script], timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "said").read_text() == "'' True True\n"


@for_each(
    ("entry", "words", "status", "name"),
    [
        ("main.main", ["--help"], 1, b"Error"),
        ("main.main", ["backends"], 1, b"Error"),
        ("mount_helper.mount_main", ["--help"], 32, b"mount.fusebackend"),
    ],
)
def test_an_output_that_takes_nothing_is_one_line(entry, words, status, name):
    script = f"from fusebackend.cli import main, mount_helper; {entry}()"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script, *words], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (status, name + b": No space left on device\n")


def test_a_bug_is_no_error_of_the_user(command, monkeypatch):
    def broken(*words):
        raise KeyError("bug")

    monkeypatch.setattr("fusebackend.cli.target.locate", broken)
    with pytest.raises(KeyError, match="bug"):
        command("ls", MOUNT)


class TestCompletion:
    def words(self, *line: str) -> list[tuple[str, str]]:
        """What the last word of a command line may go on with: type and value."""
        shell = click.shell_completion.ShellComplete(main.main, {}, "fusebackend", "_FUSEBACKEND_COMPLETE")
        return [(item.type, item.value) for item in shell.get_completions(list(line[:-1]), line[-1])]

    def test_commands_and_options(self, command):
        assert ("plain", "grep") in self.words("g")
        assert ("plain", "--mount") in self.words("ls", "--mo")

    def test_paths_of_the_file_system_are_the_shells(self, command):
        assert self.words("ls", "/mnt/x") == [("file", "/mnt/x")]
        assert self.words("grep", "TODO", "./d") == [("file", "./d")]
        assert self.words("upload", "./d") == [("file", "./d")]

    def test_paths_of_agents_are_asked_for(self, command):
        assert self.words("ls", "--mount", MOUNT, "/") == [("plain", "/dir/"), ("plain", "/file")]
        assert self.words("ls", "--mount", MOUNT, "/f") == [("plain", "/file")]
        assert self.words("ls", "--mount", MOUNT, "fi") == [("plain", "file")]
        assert self.words("ls", "--mount", MOUNT, "/none/x") == []

    def test_a_directory_goes_on_with_what_is_in_it(self, command):
        found = [("plain", "/dir/"), ("plain", "/dir/a"), ("plain", "/dir/b c")]
        assert self.words("ls", "--mount", MOUNT, "/d") == found
        assert self.words("ls", "--mount", MOUNT, "/dir/") == found[1:]

    def test_mounts(self, command):
        assert self.words("ls", "--mount", "/m") == [("plain", MOUNT)]
        assert self.words("ls", "--mount", "/x") == [("dir", "/x")]

    @for_each(
        ("line", "offered"),
        [
            (["umount", "/m"], [("plain", MOUNT)]),
            (["status", "/x"], [("dir", "/x")]),
            (["mount", "--default", "sq"], [("plain", "sqlite:")]),
            (["mount", "--default", "sqlite:a"], [("plain", "sqlite:agent.db"), ("plain", "sqlite:agents/")]),
            (["mount", "--default", "memory:a"], []),
            (["mount", "--route", "/x=mem"], [("plain", "/x=memory:")]),
            (["mount", "--route", "/x"], []),
            (["mount", "-o", "ro,allow"], [("plain", "ro,allow_other")]),
            (["mount", "-o", "tt"], [("plain", "ttl=")]),
            (["mount", "-o", "ro,trees_"], [("plain", "ro,trees_name=")]),
            (["check", "sqlite:agent."], [("plain", "sqlite:agent.db")]),
            (["check", "agent"], [("file", "agent")]),
        ],
    )
    def test_mount_points_urls_and_options(self, line, offered, command, tmp_path, monkeypatch):
        (tmp_path / "agent.db").write_text("")
        (tmp_path / "agents").mkdir()
        monkeypatch.chdir(tmp_path)
        assert self.words(*line) == offered

    def test_files_of_an_absolute_path(self, command, tmp_path):
        (tmp_path / "agent.db").write_text("")
        given = f"sqlite:{tmp_path}/agent."
        assert self.words("mount", "--default", given) == [("plain", f"sqlite:{tmp_path}/agent.db")]

    def test_what_goes_wrong_is_silent(self, command, capfd):
        assert self.words("ls", "--mount", "/nowhere", "/") == []
        assert self.words("ls", "--mount", MOUNT, "/../x") == []
        context = click.Context(main.main)
        context.params = {"mount": ""}
        assert target.complete_path(context, main.main.params[0], "/") == []
        assert capfd.readouterr() == ("", "")


@for_each(("text", "status"), [("readonly = true\n", 2), ("default = [\n", 2), ("ttl = 'soon'\n", 2), (None, 1)])
def test_a_mistake_of_the_configuration_has_the_status_of_one_of_the_command_line(command, tmp_path, text, status):
    """A unit of systemd does not try that again. A file that can't be read may be there later."""
    (tmp_path / "mount").mkdir()
    config = tmp_path / "agent.toml"
    if text is not None:
        config.write_text(text)
    done = command("mount", str(tmp_path / "mount"), "--config", str(config))
    assert (done.exit_code, done.stdout) == (status, "")
    assert done.stderr.startswith("Error: ")


def test_an_empty_path_is_not_the_current_directory(command, tmp_path):
    """As of a variable that is not set: the current directory would be mounted on, or the file left unread."""
    config = tmp_path / "agent.toml"
    config.write_text('mountpoint = "a\\u0000b"\n')
    for words, error in (
        (["mount", ""], "'' can't be the path of a mount point"),
        (["umount", ""], "'' can't be the path of a mount point"),
        (["mount", tmp_path, "--config", ""], "cannot read '': No such file or directory"),
        (["mount", "--config", config], f"'{tmp_path}/a\\x00b' can't be the path of a mount point"),
    ):
        assert command.refused(*words) == error
