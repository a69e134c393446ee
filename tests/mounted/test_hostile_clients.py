"""A mount under the worst loads that clients of its control socket can make: it goes on answering, new clients too, and
its memory stays within the limits of `docs/control-protocol.md`.

`make bench` measures the speed; the limits here only distinguish a freeze (seconds to for ever) from a busy machine.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import sys
import time
from functools import partial

import mounts
import pytest
from controlled import Raw
from eventually import eventually
from profiles import amount
from together import over_and_over

from fusebackend.control import rendezvous

STAT_LIMIT_S = 5.0
NEWCOMER_LIMIT_S = 10.0
GROWTH_KIB = 256 << 10
SECONDS = amount("FUSEBACKEND_ATTACK_MS", day=500, night=5_000) / 1000


def message(method, id=1, **params):
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def several(method, count, **params):
    return b"".join(message(method, number, **params) for number in range(count))


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"payload":['

ATTACKS = {
    "a pattern that backtracks": (8, message("glob", pattern="**/a/" * 14 + "b")),
    "as a filter": (8, message("grep", pattern="x", glob="**/a/" * 14 + "b")),
    "lists in lists": (64, (PING + b"[]," * 340_000 + b"1]}}\n") * 2),
    "with a surrogate": (32, (PING + b"[]," * 340_000 + b'"\\udcff"]}}\n') * 2),
    "messages that never end": (256, PING + b"1," * 500_000),
    "nothing at all": (600, b""),
    "downloads nobody reads": (64, several("download_files", 32, paths=["/large"], stream=True)),
    "large downloads in one piece": (64, several("download_files", 32, paths=["/large"])),
    "many short lines": (64, several("read", 4, file_path="/large", limit=1 << 40)),
    "as many matches": (64, several("grep", 16, pattern="a")),
    "edits": (32, several("edit", 2, file_path="/large", old_string="a", new_string="a", replace_all=True)),
    "subscriptions nobody reads": (256, several("subscribe", 16)),
    "no JSON at all": (256, b"x\n" * 100_000),
    "wrong calls": (256, several("sl", 5_000)),
    "many pings": (256, several("ping", 5_000, payload="abc")),
    "half a message": (600, b'{"jsonrpc":"2.0",'),
    "edits that grow": (
        32,
        several("edit", 2, file_path="/large", old_string="a", new_string="b" * 500, replace_all=True),
    ),
    "many files": (64, message("upload_files", files=[{"path": ""}] * 70_000) * 2),
    "many paths": (64, message("download_files", paths=[""] * 200_000)),
}


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    with mounts.mounted(tmp_path_factory.mktemp("hostile") / "mnt", "memory:") as mounted:
        deep = mounted.path.joinpath(*"a" * 60)
        deep.mkdir(parents=True)
        (deep / "c").touch()
        (mounted.path / "large").write_bytes(b"abc\n" * (5 << 20))
        yield mounted


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_mount_and_newcomers_are_served_beside(mounted, attack):
    address = os.getxattr(mounted.path, rendezvous.SOCKET_XATTR).decode()
    count, sent = ATTACKS[attack]
    rest_kib = mounted.memory_kib()
    most_kib = 0

    def look():
        (mounted.path / f"no-{time.monotonic_ns()}").exists()

    def come():
        answer = None
        while answer is None:  # a refused client retries, as `Client` does
            with contextlib.suppress(ConnectionError), Raw(address) as raw:
                answer = (raw.ask("ping", payload=1) or {}).get("result")
        assert answer == 1

    def measure():
        nonlocal most_kib
        most_kib = max(most_kib, mounted.memory_kib())

    longest_s = dict.fromkeys((look, come, measure), 0.0)

    def timed(call):
        begun = time.monotonic()
        call()
        longest_s[call] = max(longest_s[call], time.monotonic() - begun)

    with contextlib.ExitStack() as stack:
        for call in longest_s:
            stack.enter_context(over_and_over(partial(timed, call), pause_s=0.01))
        streams = []
        for _ in range(count):
            stream = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            streams.append(stream)
            stream.connect(address)
            stream.setblocking(False)
        unsent = dict.fromkeys(streams, sent)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for stream, rest in list(unsent.items()):
                try:
                    unsent[stream] = rest[stream.send(rest) :]
                except BlockingIOError:
                    continue
                except OSError:  # the server closed it for a newcomer
                    del unsent[stream]
            (mounted.path / "changing").write_text(str(end))
            time.sleep(0.05)
    growth_mib = (most_kib - rest_kib) / 1024
    print(f"{attack}: stat {longest_s[look]:.3f} s, newcomer {longest_s[come]:.3f} s, {growth_mib:+.0f} MiB")
    assert longest_s[look] < STAT_LIMIT_S
    assert longest_s[come] < NEWCOMER_LIMIT_S
    assert most_kib - rest_kib < GROWTH_KIB


def _is_written(path):
    try:
        path.write_text("1")
    except OSError as error:
        assert error.errno == errno.ENOMEM
        return False
    return True


def test_a_server_that_may_not_have_more_memory_refuses_and_goes_on(tmp_path):
    """Under `ulimit -v`, an allocation that failed in pyfuse3 ended the server, and all its routes with it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (900 << 20, before[1]))
    try:
        server = mounts.mounted(tmp_path / "mnt", "memory:", routes={"/db": f"sqlite:{tmp_path}/db"})
        mounted = server.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    try:
        with pytest.raises(OSError) as failure, open(mounted.path / "large", "wb", buffering=0) as large:
            for _ in range(2000):
                large.write(bytes(1 << 20))
        assert failure.value.strerror == "Cannot allocate memory"
        (mounted.path / "large").unlink()
        eventually(lambda: _is_written(mounted.path / "db" / "after"), 60)  # its memory goes when the kernel forgets it
        (mounted.path / "after").write_text("1")
        assert (mounted.path / "after").read_text() == "1"
    finally:
        server.__exit__(*sys.exc_info())
