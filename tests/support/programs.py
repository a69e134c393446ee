"""Scripts and the `fusebackend` command as processes of their own, on a real mount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fusebackend import Client

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


def as_call(files: Client, where: Path, script: str, agent: str = "coder") -> str:
    """Run a script as one call of an agent; return the call's name. It must change something."""
    name = files.begin_call(f"run {script}", id=agent, agent=agent)
    sh(script, where)
    found = files.end_call(name)
    assert found is not None
    return found


def ok(*words: object, cwd: Path, stdin: str = "") -> str:
    """Run `fusebackend`, which must succeed; return what it printed."""
    done = command(*words, cwd=cwd, stdin=stdin)
    assert done.returncode == 0, done
    return done.stdout


def command(
    *words: object, cwd: Path | None = None, stdin: str = "", limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run `fusebackend` without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "fusebackend", *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=limit_s,
        cwd=cwd,
    )
