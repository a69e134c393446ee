"""Scripts and the `fusebackend` command as processes of their own, on a real mount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 60.0
"""A hang, not a slow machine."""

ROOT = Path(__file__).parents[2]


def sh(script: str, cwd: Path, *, limit_s: float = LIMIT_S, **env: str) -> str:
    """Run a script, which must succeed; return what it printed."""
    return _bash(script, cwd, limit_s, env, session=False)


def session(script: str, cwd: Path, *, limit_s: float = LIMIT_S) -> None:
    """Run a script as a process session of its own, which is one call."""
    _bash(script, cwd, limit_s, {}, session=True)


def _bash(script: str, cwd: Path, limit_s: float, env: dict[str, str], *, session: bool) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=limit_s,
        start_new_session=session,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*words: object, cwd: Path | None = None, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run `fusebackend` without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "fusebackend", *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=cwd,
    )
