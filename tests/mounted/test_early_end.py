"""A server that gets SIGTERM right after its mount appears ends, also in the middle of its start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mounts
import pytest

pytestmark = pytest.mark.mounted


@pytest.mark.parametrize("delay_s", [0, 0.0005, 0.001, 0.002, 0.004, 0.008])
def test_sigterm_in_the_first_moments(tmp_path: Path, delay_s: float) -> None:
    mounts.require()
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    command = [sys.executable, "-m", "fusebackend.cli.main", "mount", str(mountpoint), "--foreground"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--default", "memory:"],
            env={**os.environ, "PYTHONPATH": str(mounts.ROOT)},
            stdout=log,
            stderr=log,
        )
    try:
        while not mounts.is_listed(mountpoint):  # not `ismount`: that would wait for an answer
            assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(delay_s)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
        assert not mounts.is_listed(mountpoint)
    finally:
        process.kill()
        process.wait()
        if mounts.is_listed(mountpoint):
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=True)


def test_a_crash_in_c_code_leaves_the_stacks_in_the_log(serve: mounts.Serve) -> None:
    mounted = serve("memory:")
    mounted.process.send_signal(signal.SIGSEGV)
    assert mounted.process.wait(30) == -signal.SIGSEGV
    text = mounted.log_text()
    assert "Fatal Python error: Segmentation fault" in text
    assert "in serve" in text
