"""Waiting for the next FUSE request, with fewer trips through the scheduler.

pyfuse3's session loop takes a `trio.Lock` and waits for its descriptor before every request. Each is a trip through
trio's scheduler, and the wait puts the thread to sleep although the next request usually arrives within 20 µs: the
caller has just been answered. So the lock stays with the worker that is at it, and the descriptor is polled for a
moment before trio is asked to wait.

The module `pyfuse3` looks trio up by name, so that `pyfuse3.asyncio` can put itself there; this uses the same door.
Other tasks of the loop are not starved: after `BURST` requests, or a poll in vain, trio gets its turn.

A request that was there when the descriptor was polled may be gone when it is read: its process has been killed. The
read would then wait for another one, with Python's lock held, and every thread of the server with it (seen when eight
sandboxes ended at once). So the descriptor does not block; and as pyfuse3 takes the EAGAIN of such a read for a
failure, its loop is begun again then. It loses its buffer each time: a megabyte that nothing was written to, for a rare
event.

Saves: half of the processor time of server and client on everything that is many requests (4,000 requests of reading
small files: 0.27 s instead of 0.56 s). Costs: up to 50 µs of polling after the last request. Switch: `eager_loop`.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import trio

from fusebackend.fuse.pyfuse3_patches.cached_opendir import CachedOpendir
from fusebackend.fuse.pyfuse3_patches.cpu_latency import CpuLatency
from fusebackend.fuse.pyfuse3_patches.init_flags import InitFlags

SPIN_S = 50e-6
"""How long to poll for the next request. Longer saves nothing more and takes the core from the caller."""

BURST = 64
"""Requests answered in a row before other tasks get a turn."""


class _EagerLock:
    """A lock for pyfuse3 in place of `trio.Lock`, unfair on purpose.

    `trio.Lock` hands itself to the next waiter, so two workers would take turns, with a trip through the scheduler for
    each request. Here the worker that has just answered takes the lock again before the woken one gets to run.
    """

    def __init__(self, cached_opendir: CachedOpendir) -> None:
        self._held = False
        self._waiting = trio.lowlevel.ParkingLot()
        self._cached_opendir = cached_opendir

    async def __aenter__(self) -> None:
        if self._cached_opendir.is_on:
            self._cached_opendir.end()
        while self._held:
            await self._waiting.park()
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._waiting:
            self._waiting.unpark()


class _Lowlevel:
    """`trio.lowlevel` with a `wait_readable` that looks before it sleeps."""

    def __init__(
        self,
        cached_opendir: CachedOpendir,
        cpu_latency: CpuLatency,
        init_flags: Callable[[int], InitFlags] | None,
    ) -> None:
        self._begin = init_flags
        self._cached_opendir = cached_opendir
        self._cpu_latency = cpu_latency
        self._poll = select.poll()
        self._registered = -1
        self._served = 0
        self._is_closing = False
        self.init_flags: InitFlags | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)

    async def wait_readable(self, descriptor: int) -> None:
        if descriptor != self._registered:
            os.set_blocking(descriptor, False)
            self.init_flags = self._begin(descriptor) if self._begin is not None else None
            self._poll.register(descriptor, select.POLLIN)
            self._registered = descriptor
        if self.init_flags is not None and not self.init_flags.is_over:
            await self.init_flags.go_on()
            if self.init_flags.is_over:
                self._cached_opendir.prepare(self.init_flags.diversion)
        self._served += 1
        if self._served >= BURST:
            self._cpu_latency.served(self._served)
            self._served = 0
            await trio.lowlevel.checkpoint()  # and no wait: its sleep takes 100 µs, and the next request comes sooner
        give_up = 0.0
        while not self._poll.poll(0):
            now = time.perf_counter()
            if not give_up:
                give_up = now + SPIN_S
            elif now > give_up:
                self._cpu_latency.served(self._served)
                self._served = 0
                if self._is_closing:  # since this call began
                    raise trio.ClosedResourceError
                await trio.lowlevel.wait_readable(descriptor)
                return

    def notify_closing(self, descriptor: int) -> None:
        """End `wait_readable`, also where it does not wait yet. A server that got SIGTERM while others had their turn
        went on until the next request (one of some forty, 64 `release`s after a burst)."""
        self._is_closing = True
        trio.lowlevel.notify_closing(descriptor)


class _Nursery:
    """A nursery for pyfuse3's workers, which go on when there was nothing to read after all."""

    def __init__(self, nursery: trio.Nursery, cached_opendir: CachedOpendir) -> None:
        self._nursery = nursery
        self._cached_opendir = cached_opendir

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nursery, name)

    def start_soon(self, worker: Callable[..., Awaitable[Any]], *args: Any, name: object = None) -> None:
        # pyfuse3 hands the nursery on to its workers: it must be this one, not the one inside.
        self._nursery.start_soon(self._going_on, worker, *args, name=name)

    async def _going_on(self, worker: Callable[..., Awaitable[Any]], *args: Any) -> None:
        while True:
            try:
                await worker(*args)
            except BlockingIOError:
                continue
            finally:
                self._cached_opendir.end()  # one of too many workers, which does not come back
            return


class EagerTrio:
    """Stands for the module `trio` in pyfuse3.

    Args:
        cached_opendir: is prepared with the descriptor that pyfuse3 waits for, after FUSE_INIT.
        cpu_latency: counts the answers.
        init_flags: is begun on that descriptor; None: FUSE_INIT goes as it comes, and nothing is prepared.
    """

    def __init__(
        self,
        cached_opendir: CachedOpendir,
        cpu_latency: CpuLatency,
        init_flags: Callable[[int], InitFlags] | None = None,
    ) -> None:
        self.lowlevel = _Lowlevel(cached_opendir, cpu_latency, init_flags)
        self._cached_opendir = cached_opendir

    def Lock(self) -> _EagerLock:  # noqa: N802 - trio's name
        return _EagerLock(self._cached_opendir)

    @contextlib.asynccontextmanager
    async def open_nursery(self) -> AsyncIterator[_Nursery]:
        async with trio.open_nursery() as nursery:
            yield _Nursery(nursery, self._cached_opendir)

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)

    def close(self) -> None:
        """The mount has ended, perhaps before it has begun."""
        self._cached_opendir.close()
        if self.lowlevel.init_flags is not None:
            self.lowlevel.init_flags.diversion.close()
