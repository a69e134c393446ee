"""Messages that many threads read at once."""

from __future__ import annotations

import subprocess
import sys

import mounts

_AT_ONCE = """
import sys, threading
import msgspec
from fusebackend.control import wire

sys.setswitchinterval(1e-6)
for number in range(50):
    inner = msgspec.defstruct(f"Inner{number}", [(f"field{i}", int | None, None) for i in range(10)])
    kind = msgspec.defstruct(f"Kind{number}", [(f"field{i}", list[inner], []) for i in range(30)])
    barrier = threading.Barrier(4)
    found = []

    def read():
        barrier.wait()
        found.append(wire.decode_as(kind, msgspec.Raw(b'{"field29": [{"field9": 1}]}')).field29[0].field9)
        found.append(wire.convert({"field29": [{"field9": 1}]}, kind).field29[0].field9)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
"""


def test_threads_that_read_a_type_for_the_first_time_at_once() -> None:
    """msgspec's decoders can't be made by two threads at once: a server ended with SIGSEGV, its clients' first calls
    having come in the same millisecond. A process of its own, for that would end this one."""
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], cwd=mounts.ROOT, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
