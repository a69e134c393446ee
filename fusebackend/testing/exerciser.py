"""`Exerciser`: random work on one file, compared with a byte array after every step (the idea is fsx's).

    Exerciser(pathlib.Path("/mnt/mine/file"), seed=7).run(10_000)

Each step reads, writes, maps, cuts, extends or reopens the file in one of the ways the system has for it, with sizes
and offsets around pages, chunks and the end of the file. The first byte that differs ends it with an `AssertionError`
that names the seed and the last steps. The same seed does the same steps again.

Several exercisers, each in a process of its own, may share a file when each has a `part` of it to itself. They then
leave the file's size alone, and each checks only the bytes of its own part.
"""

from __future__ import annotations

import collections
import mmap
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fusebackend.testing.posix.case import opened

PAGE = mmap.PAGESIZE
EDGES = (PAGE, 4 * PAGE, 1 << 16, 1 << 17)
"""Offsets and sizes gather around multiples of these: pages, chunks of a volume, requests of the kernel."""

REMEMBERED = 30
"""A failure lists this many of the last steps."""

Step = Callable[[], str]


class Exerciser:
    """See the module's docstring.

    Args:
        path: the file; made, or emptied, unless there is a `part`.
        seed: the seed of the random numbers.
        largest: the largest size of the file, in bytes.
        part: the range (first byte, end) that belongs to this exerciser, of a file that exists already.
        others: more steps, such as a remount; each is called now and then with the file closed. Each may change the
            bytes: it takes the expected ones and returns those that are expected from then on.
    """

    def __init__(
        self,
        path: Path,
        seed: int,
        *,
        largest: int = 400_000,
        part: tuple[int, int] | None = None,
        others: dict[str, Callable[[bytes], bytes]] | None = None,
    ) -> None:
        self.path = path
        self.seed = seed
        self.steps = 0
        self._chance = random.Random(seed)
        self._start, self._limit = part or (0, largest)
        self._fixed = part is not None
        self._others = others or {}
        self._history: collections.deque[str] = collections.deque(maxlen=REMEMBERED)
        if part is None:
            self._bytes = bytearray()
            path.write_bytes(b"")
        else:
            self._bytes = bytearray(path.read_bytes()[self._start : self._limit])
        self._fd = -1
        self._map: mmap.mmap | None = None

    def run(self, steps: int) -> None:
        """Do so many steps, and compare the whole file at the end."""
        kinds, weights = zip(*self._kinds().items(), strict=True)
        self._fd = os.open(self.path, os.O_RDWR)
        try:
            for step in self._chance.choices(kinds, weights, k=steps):
                self._history.append(f"{step.__name__.strip('_')} …")
                self._history[-1] = f"{self.steps}: {step()}"
                self.steps += 1
            self._history.append(self._compare_all())
        finally:
            self._close()

    def between(self, other: Callable[[bytes], bytes]) -> None:
        """Do something else to the file, as each of `others` does; `run` goes on after it."""
        self._bytes = bytearray(other(bytes(self._bytes)))

    def _kinds(self) -> dict[Step, int]:
        kinds: dict[Step, int] = {
            self._read: 20,
            self._write: 20,
            self._write_by_another_handle: 6,
            self._read_by_another_handle: 6,
            self._read_mapped: 10,
            self._write_mapped: 10,
            self._zero: 4,
            self._sync: 2,
            self._reopen: 2,
            self._forget_pages: 2,
        }
        if not self._fixed:
            kinds |= {self._truncate: 6, self._truncate_by_name: 3, self._append: 6, self._copy_within: 3}
            if self._others:
                kinds[self._do_another] = 1
        return kinds

    # -- where -------------------------------------------------------------------------------------------------

    def _number(self, highest: int) -> int:
        """Draw a number from 0 to `highest`, often beside an edge; 0 where `others` left more than `largest` bytes."""
        highest = max(0, highest)
        if self._chance.random() < 0.4:
            edge = self._chance.choice(EDGES)
            near = self._chance.randint(0, highest // edge) * edge + self._chance.randint(-2, 2)
            return min(max(near, 0), highest)
        return self._chance.randint(0, highest)

    def _size(self, highest: int) -> int:
        return min(self._number(self._chance.choice((16, PAGE, 3 * PAGE, 1 << 17))), max(0, highest))

    def _range(self, *, extend: bool) -> tuple[int, int]:
        """Draw an offset in the part and a size; they pass the end of the file only with `extend`."""
        highest = self._limit - self._start if extend and not self._fixed else len(self._bytes)
        offset = self._number(highest)
        return offset, self._size(highest - offset)

    def _put(self, offset: int, data: bytes) -> None:
        if data and offset > len(self._bytes):
            self._bytes.extend(bytes(offset - len(self._bytes)))
        self._bytes[offset : offset + len(data)] = data

    def _same(self, found: bytes, offset: int, how: str) -> None:
        wanted = bytes(self._bytes[offset : offset + len(found)])
        if found == wanted:
            return
        first = next(index for index, byte in enumerate(found) if wanted[index : index + 1] != bytes([byte]))
        what = f"byte {self._start + offset + first} is {found[first]:#04x}"
        right = f"{wanted[first]:#04x}" if first < len(wanted) else "beyond the end"
        self._fail(f"{how} {len(found)} at {self._start + offset}: {what} and should be {right}")

    def _fail(self, what: str) -> None:
        last = "\n  ".join(self._history)
        raise AssertionError(f"seed {self.seed}, step {self.steps}, {self.path}: {what}; the last steps:\n  {last}")

    # -- steps -------------------------------------------------------------------------------------------------

    def _read(self) -> str:
        offset, size = self._range(extend=True)
        found = os.pread(self._fd, size, self._start + offset)
        if len(found) != min(size, max(0, len(self._bytes) - offset)):
            self._fail(f"read {size} at {self._start + offset} gave {len(found)} bytes of {len(self._bytes)}")
        self._same(found, offset, "read")
        return f"read {size} at {offset}"

    def _read_by_another_handle(self) -> str:
        offset, size = self._range(extend=False)
        with opened(self.path, os.O_RDONLY) as fd:
            if not self._fixed and os.fstat(fd).st_size != len(self._bytes):
                self._fail(f"the size is {os.fstat(fd).st_size} and should be {len(self._bytes)}")
            self._same(os.pread(fd, size, self._start + offset), offset, "read by another handle")
        return f"read {size} at {offset} by another handle"

    def _write(self) -> str:
        offset, size = self._range(extend=True)
        return self._written(self._fd, offset, self._chance.randbytes(size), "write")

    def _write_by_another_handle(self) -> str:
        offset, size = self._range(extend=True)
        with opened(self.path, os.O_WRONLY) as fd:
            return self._written(fd, offset, self._chance.randbytes(size), "write by another handle")

    def _zero(self) -> str:
        offset, size = self._range(extend=False)
        return self._written(self._fd, offset, bytes(size), "zero")

    def _append(self) -> str:
        data = self._chance.randbytes(self._size(self._limit - len(self._bytes)))
        with opened(self.path, self._chance.choice((os.O_WRONLY, os.O_RDWR)) | os.O_APPEND) as fd:
            return self._written(fd, len(self._bytes), data, "append")

    def _written(self, fd: int, offset: int, data: bytes, how: str) -> str:
        done = os.pwrite(fd, data, self._start + offset)
        if done != len(data):
            self._fail(f"{how} of {len(data)} bytes wrote {done}")
        self._put(offset, data)
        return f"{how} {len(data)} at {offset}"

    def _mapped(self) -> mmap.mmap | None:
        """Map the whole file; keep the mapping over steps until the size changes."""
        size = self._limit if self._fixed else len(self._bytes)
        self._unmap_other(size)
        if self._map is None and size:
            self._map = mmap.mmap(self._fd, size)
        return self._map

    def _read_mapped(self) -> str:
        offset, size = self._range(extend=False)
        mapped = self._mapped()
        if mapped is not None:
            self._same(mapped[self._start + offset : self._start + offset + size], offset, "mapped read")
        return f"mapped read of {size} at {offset}"

    def _write_mapped(self) -> str:
        offset, size = self._range(extend=False)
        mapped = self._mapped()
        if mapped is not None:
            data = self._chance.randbytes(size)
            mapped[self._start + offset : self._start + offset + size] = data
            self._put(offset, data)
            if self._chance.random() < 0.3:
                mapped.flush()
        return f"mapped write of {size} at {offset}"

    def _truncate(self) -> str:
        return self._resize(partial(os.ftruncate, self._fd), "ftruncate")

    def _truncate_by_name(self) -> str:
        return self._resize(partial(os.truncate, self.path), "truncate")

    def _resize(self, truncate: Callable[[int], None], how: str) -> str:
        size = self._number(self._limit)
        self._unmap_other(size)
        truncate(size)
        del self._bytes[size:]
        self._bytes.extend(bytes(size - len(self._bytes)))
        if os.fstat(self._fd).st_size != size:
            self._fail(f"{how} to {size} left {os.fstat(self._fd).st_size} bytes")
        return f"{how} to {size}"

    def _unmap_other(self, size: int = -1) -> None:
        """Close a mapping of another size, without one any: touching it beyond the end of the file is SIGBUS."""
        if self._map is not None and len(self._map) != size:
            self._map.close()
            self._map = None

    def _copy_within(self) -> str:
        source, size = self._range(extend=False)
        target = self._number(self._limit - size)
        if source < target + size and target < source + size:
            return "no copy: the ranges overlap"
        done = os.copy_file_range(self._fd, self._fd, size, source, target) if size else 0
        self._put(target, bytes(self._bytes[source : source + done]))
        return f"copy of {size} from {source} to {target}: {done}"

    def _sync(self) -> str:
        os.fsync(self._fd)
        return "fsync"

    def _forget_pages(self) -> str:
        os.fsync(self._fd)  # dirty pages stay
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return "the kernel's pages dropped"

    def _reopen(self) -> str:
        self._close()
        self._fd = os.open(self.path, os.O_RDWR)
        return "reopen"

    def _do_another(self) -> str:
        name = self._chance.choice(sorted(self._others))
        self._close()
        self._bytes = bytearray(self._others[name](bytes(self._bytes)))
        self._fd = os.open(self.path, os.O_RDWR)
        return name

    def _compare_all(self) -> str:
        found = self.path.read_bytes()
        if self._fixed:
            found = found[self._start : self._limit]
        if len(found) != len(self._bytes):
            self._fail(f"{len(found)} bytes at the end, and {len(self._bytes)} expected")
        self._same(found, 0, "compare")
        return "compared"

    def _close(self) -> None:
        self._unmap_other()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
