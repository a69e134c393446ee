"""`CpuLatency`: while requests come thick and fast, idle processors of a virtual machine stay awake.

A process sleeps until its request is answered. If nothing else is to be done on that processor it is halted, and to
wake a halted processor of a virtual machine goes through the hypervisor, which takes as long as the answer itself: each
request takes twice the time (BENCHMARKS.md). Linux lets a program that can't wait so long say so:
while it holds a request for a latency of 0 in /dev/cpu_dma_latency, idle processors look for work in a loop instead of
halting (Documentation/power/pm_qos_interface.rst, drivers/cpuidle/governors/haltpoll.c).

That takes time of the host's processors. So it is asked for only during bursts, and given back 20 to 40 ms after one.
The kernel takes the request back itself when the server dies. The request is for the whole machine, so a mount makes it
only with `-o idle=poll`, and only root may. On bare metal, where a processor wakes by itself and an idle one saves
power, it isn't made either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time

import trio

log = logging.getLogger(__name__)

DEVICE = "/dev/cpu_dma_latency"

DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver"
HALTING_DRIVER = "haltpoll"
"""Of the guests of a hypervisor (drivers/cpuidle/cpuidle-haltpoll.c)."""

WINDOW_S = 0.02
BURST_REQUESTS = 48
"""So many requests within a window are a burst, which goes on while there are half as many in each."""

_NO_LATENCY = struct.pack("=i", 0)
_ANY_LATENCY = struct.pack("=i", 2_000_000_000)  # PM_QOS_CPU_LATENCY_DEFAULT_VALUE


class CpuLatency:
    """See the module's docstring. All is called in the loop's thread."""

    def __init__(self) -> None:
        self._device = -1
        self.refused: str | None = None
        """Why processors sleep although `open` was called, for people; None where they stay awake or it was not."""
        self._requests = 0
        self._window_s, self._before = 0.0, 0  # when it began, and after how many requests
        self._burst = trio.Event()

    def open(self) -> None:
        """From now on, ask for it. Without effect where processors don't halt, or without the permission to ask."""
        try:
            with open(DRIVER) as file:
                driver = file.read().strip()
        except OSError:
            driver = "none"
        try:
            if driver == HALTING_DRIVER:
                self._device = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)  # which asks for nothing yet
            else:
                self.refused = f"the cpuidle driver here is '{driver}', and only '{HALTING_DRIVER}' gains by it"
        except OSError as error:
            self.refused = f"cannot open {DEVICE}: {error.strerror}"
        if self.refused is not None:
            log.info("idle processors will sleep: %s", self.refused)

    @property
    def can_ask(self) -> bool:
        return self._device >= 0

    def served(self, requests: int) -> None:
        """So many more requests have been answered."""
        self._requests += requests
        if self._device < 0 or self._burst.is_set():
            return
        now_s = time.perf_counter()
        if now_s - self._window_s > WINDOW_S:
            self._window_s, self._before = now_s, self._requests
        elif self._requests - self._before >= BURST_REQUESTS:
            self._ask(_NO_LATENCY)
            self._burst.set()

    async def run(self) -> None:
        """Let processors sleep again after each burst."""
        while True:
            await self._burst.wait()
            before = self._requests
            await trio.sleep(WINDOW_S)
            if self._requests - before < BURST_REQUESTS // 2:
                self._ask(_ANY_LATENCY)
                self._burst = trio.Event()

    def close(self) -> None:
        """The mount has ended."""
        if self._device >= 0:
            os.close(self._device)
            self._device = -1

    def _ask(self, latency: bytes) -> None:
        with contextlib.suppress(OSError):  # it stays as it is, and so do we
            os.write(self._device, latency)
