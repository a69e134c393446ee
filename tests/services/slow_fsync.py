"""A disk that is slow to confirm: a library whose `fsync` and `fdatasync` wait, for programs that are started with it.

    with postgres.running(durable=True, slow_fsync_s=0.005): ...

PostgreSQL has no setting for it: `commit_delay` waits only beside other commits, and groups them. A C compiler makes
the library; each call first waits, then does what it is for.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int after_a_wait(const char *name, int fd) {
    struct timespec wait = {NANOSECONDS / 1000000000L, NANOSECONDS % 1000000000L};
    nanosleep(&wait, 0);
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(fd);
}
int fsync(int fd) { return after_a_wait("fsync", fd); }
int fdatasync(int fd) { return after_a_wait("fdatasync", fd); }
"""


def missing() -> str | None:
    """Return the reason why the library can't be made here, or None."""
    return None if shutil.which("cc") else "there is no C compiler (Debian: gcc)"


def build(directory: Path, seconds: float) -> Path:
    """Compile the library in a directory that the server's user may read; return its path."""
    library = directory / "slow_fsync.so"
    define = f"-DNANOSECONDS={round(seconds * 1e9)}L"
    command = ["cc", "-shared", "-fPIC", "-O1", define, "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    library.chmod(0o755)
    return library
