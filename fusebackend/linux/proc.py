"""What proc(5) says of processes and of this boot."""

from __future__ import annotations


def read(name: str, most_bytes: int = -1) -> bytes:
    """Return a file below /proc, or so many bytes of it.

    Raises:
        OSError: ENOENT, ESRCH, the process has ended.
    """
    with open(f"/proc/{name}", "rb") as file:
        return file.read(most_bytes)


def stat(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) behind the name of the program, which may hold blanks and parentheses: the
    state is 0, the parent 1, the session 3, the start 19. `OSError` as `read`."""
    return read(f"{pid}/stat").rpartition(b")")[2].split()


def status(pid: int) -> dict[bytes, list[bytes]]:
    """Return the fields of proc_pid_status(5), each as its words. Raises as `read`."""
    lines = (line.partition(b":") for line in read(f"{pid}/status").split(b"\n"))
    return {name: value.split() for name, _, value in lines}


def boot_id() -> str:
    return read("sys/kernel/random/boot_id").decode().strip()
