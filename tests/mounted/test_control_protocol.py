"""The examples of `docs/control-protocol.md`, by `socat` and `jq`: other languages need no code of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from controlled import Raw

from fusebackend.control import limits, wire
from fusebackend.control.verbs import MAX_CONTENT_BYTES, MAX_INPUT_BYTES, PIECE_MATCHES

DOCUMENT = (Path(__file__).parents[2] / "docs/control-protocol.md").read_text()
LIMIT_S = 30


@pytest.fixture
def shell(serve, tmp_path):
    """Return a function that runs a script with `$mount` and `$socket`, found as in the document."""
    for tool in ("socat", "jq", "getfattr"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing")
    mounted = serve(f"sqlite:{tmp_path}/files.db", routes={"/notes": "memory:"})
    finding = next(line for line in DOCUMENT.splitlines() if line.startswith("socket=$("))

    def run(script: str) -> str:
        found = finding.replace("/mnt/agent", str(mounted.path))
        whole = f"set -euo pipefail\nmount='{mounted.path}'\n{found}\n{script}"
        done = subprocess.run(["bash", "-c", whole], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.mounted = mounted
    return run


def test_the_example(shell):
    (shell.mounted.path / "notes/plan.md").write_text("monday\n")
    (example,) = re.findall(r"```sh\n(echo .*?)```", DOCUMENT, re.DOTALL)
    assert shell(example) == "monday\n\n"


def test_several_calls_a_stream_and_an_error(shell):
    output = shell(r"""
        jq -cn '{jsonrpc:"2.0", id:1, method:"write", params:{file_path:"/notes/a", content:"needle\nstraw\n"}},
                {jsonrpc:"2.0", id:2, method:"grep", params:{pattern:"needle", stream:true}},
                {jsonrpc:"2.0", id:3, method:"fly"}' \
          | socat -t 60 - "UNIX-CONNECT:$socket" | jq -c '[.id, .method, .error.code, .params.matches[0].path]'
        cat "$mount/notes/a"
    """)
    lines = output.splitlines()
    assert json.loads(lines[0]) == [1, None, None, None]
    rest = [json.loads(line) for line in lines[1:4]]
    assert sorted(rest, key=str) == sorted(
        [[None, "grep.matches", None, "/notes/a"], [2, None, None, None], [3, None, -32601, None]], key=str
    )
    assert rest.index([None, "grep.matches", None, "/notes/a"]) < rest.index([2, None, None, None])
    assert lines[4:] == ["needle", "straw"]


def test_a_subscription(shell):
    output = shell(r"""
        ( echo '{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"path":"/notes"}}'
          sleep 1
          echo hi > "$mount/notes/n"
          sleep 1 ) | socat -t 1 - "UNIX-CONNECT:$socket" > "$mount/said"
        jq -rn 'first(inputs | select(.method == "change")) | .params.event.path' "$mount/said"
    """)
    assert output == "/notes/n\n"


def test_every_error_code_and_limit_is_documented():
    codes = {value for value in vars(wire).values() if isinstance(value, int) and value < -32000}
    assert {int(code) for code in re.findall(r"^\| (-32\d+) \|", DOCUMENT, re.MULTILINE)} == codes
    assert f"{wire.MAX_MESSAGE_BYTES >> 20} MiB" in DOCUMENT
    assert f"{MAX_CONTENT_BYTES >> 20} MiB" in DOCUMENT
    assert f"| {limits.MAX_CONNECTIONS} connections |" in DOCUMENT
    assert f"{limits.NEWCOMERS} more" in DOCUMENT
    assert f"| {limits.MAX_CALLS} long calls and {limits.MAX_CALLS} subscriptions" in DOCUMENT
    assert f"{limits.MAX_SHARED_CALLS} long calls and {limits.MAX_SHARED_SUBSCRIPTIONS} subscriptions" in DOCUMENT
    assert f"{limits.MAX_ANSWER_BYTES >> 20} MiB for an answer" in DOCUMENT
    assert f"{limits.MAX_ITEMS:,} files" in DOCUMENT
    assert f"{MAX_INPUT_BYTES >> 20} MiB that a command" in DOCUMENT
    assert f"{limits.MAX_BYTES >> 20} MiB that all calls hold" in DOCUMENT
    assert f"{limits.MAX_ARRIVING} messages of more than {limits.FREE_BYTES >> 10} KiB" in DOCUMENT
    assert f"up to {PIECE_MATCHES} at a time" in DOCUMENT


def test_raw_clients_need_no_json_library_tricks(shell):
    address = shell('printf %s "$socket"')
    with Raw(address) as raw:
        assert raw.ask("hello")["result"]["protocol"] == 1
