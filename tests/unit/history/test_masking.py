"""`masking.py`: commands without their secrets."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from pathlib import Path

import pytest
from for_each import for_each

from fusebackend.base.paths import ROOT
from fusebackend.history.history_file import HistoryFile
from fusebackend.history.masking import LogOptions, kept, masked
from fusebackend.protocol import Actor
from fusebackend.testing.each import each

SECRET = "Zx81hunter2Qq"

COMMANDS = [
    "curl -H 'Authorization: Bearer {}' https://api.example.com",
    'curl -H "Authorization: token {}" https://api.example.com',
    "curl -H 'Cookie: session={}; other=1' x",
    "curl -H 'X-Api-Key: {}' x",
    "curl -u me:{} https://example.com",
    "curl --user 'me:{}' https://example.com",
    "git clone https://me:{}@github.com/a/b",
    "git clone https://ghp_{}AAAAAAAAAAAA@github.com/a/b",
    "psql postgres://me:{}@db/x?sslmode=require",
    "psql 'host=db password={} user=me'",
    "PGPASSWORD={} psql",
    "export OPENAI_API_KEY={}; run",
    "env A=1 GITHUB_TOKEN='{} and more' run",
    'AWS_SECRET_ACCESS_KEY="{}" aws s3 ls',
    "deploy --token {} --verbose",
    "deploy --api-key={} --verbose",
    "deploy --password '{} x' now",
    "mysql -u root -p{} db",
    "sshpass -p {} ssh host",
    "docker login -u me -p {} registry",
    "tool -p {}",
    "echo sk-ant-{}-abcdefgh",
    "echo xoxb-{}",
    "echo AKIA{}",
    "echo eyJhbGciOiJIUzI1NiJ9.{}.sig",
    """python -c 'post({{"password": "{}", "user": "me"}})'""",
    "echo '-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----' > key",
    "curl 'https://x/?access_token={}&page=1'",
    "curl https://me:{}",
]


@for_each("command", COMMANDS)
def test_secrets_of_commands_are_masked(command: str) -> None:
    text = masked(command.format(SECRET))
    assert SECRET not in text
    assert "***" in text
    assert text.split()[0] == command.split()[0] or "=" in command.split()[0]


def test_a_secret_that_the_end_cuts_is_masked(tmp_path: Path) -> None:
    """A title has 200 characters at most: it is cut when it is masked."""
    history = HistoryFile(str(tmp_path / "h/history.db"))
    for case in each(itertools.product(COMMANDS, [150, 200, 260])):
        with case as (command, length):
            said = command.format(SECRET)
            title = "x" * max(length - said.index(SECRET) - 5, 0) + " " + said
            call = history.open_call("command", title, Actor(command=title))
            history.add(call, ROOT, "create", b"/a")
            found = history.call(call)
            assert SECRET[:4] not in found.title + found.actor.command
    history.close()
    assert SECRET.encode() not in (tmp_path / "h/history.db").read_bytes()


@for_each(
    "command",
    [
        "rm -rf build && make -j4 all",
        "ssh -p 2222 host uptime",
        "mkdir -p a/b",
        "cp -p file other",
        "docker run -p 8080:80 nginx",
        "curl http://localhost:8080",
        "python -m pytest -k 'not slow' tests/unit",
        "grep -rn token src/",
        "git commit -m 'fix: the password dialog'",
        "write /notes/passwords.md",
        "for i in 1 2 3; do echo $i > f$i; done",
        "sed -i s/a/b/ keys.txt",
    ],
)
def test_what_is_no_secret_stays(command: str) -> None:
    assert masked(command) == command


def test_what_is_kept() -> None:
    said = "A=1 /usr/bin/deploy --token x\n now"
    assert kept(said, "full") == "A=1 /usr/bin/deploy --token x now"
    assert kept(said, "masked") == "A=1 /usr/bin/deploy --token *** now"
    assert kept(said, "none") == "deploy"
    assert kept("Bash: rm -rf x", "none") == "Bash"
    assert kept("", "none") == ""


@pytest.mark.parametrize(
    ("how", "title", "command"), [("full", f"deploy --token {SECRET}", f"run -p {SECRET}"), ("none", "deploy", "run")]
)
def test_the_options_of_a_history(how: str, title: str, command: str, tmp_path: Path) -> None:
    path = str(tmp_path / "h/history.db")
    history = HistoryFile(path, options=LogOptions(how))
    for kind in ("command", "verb"):
        call = history.open_call(kind, f"deploy --token {SECRET}", Actor(command=f"run -p {SECRET}"))  # type: ignore[arg-type]
        history.add(call, ROOT, "create", b"/a")
    history.close()
    with contextlib.closing(sqlite3.connect(path)) as kept:
        rows = kept.execute("SELECT title, command FROM calls ORDER BY number").fetchall()
    assert rows[0] == (title, command)
    assert rows[1][0] == (title if how == "full" else "deploy --token ***"), "a verb is no command"


def test_an_option_that_is_none() -> None:
    with pytest.raises(ValueError, match="commands = 'all': give one of masked, full, none"):
        LogOptions("all")
