"""Processors stay awake during bursts of requests, and no longer; where we may ask for that."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from clocks import Clock
from mounts import Serve

from fusebackend.fuse.pyfuse3_patches import cpu_latency
from fusebackend.fuse.pyfuse3_patches.cpu_latency import BURST_REQUESTS, WINDOW_S, CpuLatency


class Device:
    """In place of the kernel's: what has been asked for, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def asked(self) -> list[int]:
        return [latency for (latency,) in struct.iter_unpack("=i", self.path.read_bytes())]


ANY, NONE = 2_000_000_000, 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(cpu_latency, "time", SimpleNamespace(perf_counter=clock))
    return clock


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    (tmp_path / "driver").write_text("haltpoll\n")
    device = Device(tmp_path / "device")
    monkeypatch.setattr(cpu_latency, "DRIVER", str(tmp_path / "driver"))
    monkeypatch.setattr(cpu_latency, "DEVICE", str(device.path))
    return device


@pytest.fixture
def awake(device: Device) -> Iterator[CpuLatency]:
    awake = CpuLatency()
    awake.open()
    yield awake
    awake.close()


def test_a_burst_keeps_them_awake(device: Device, awake: CpuLatency, clock: Clock) -> None:
    assert awake.can_ask
    awake.served(BURST_REQUESTS)  # the first of a window: nobody knows how long they took
    assert device.asked() == []
    awake.served(BURST_REQUESTS - 1)
    awake.served(1)
    awake.served(BURST_REQUESTS)
    assert device.asked() == [NONE]


def test_a_few_now_and_then_do_not(device: Device, awake: CpuLatency, clock: Clock) -> None:
    for _ in range(3):
        awake.served(BURST_REQUESTS - 1)
        clock.now += 2 * WINDOW_S
    assert device.asked() == []


def test_after_a_burst_they_sleep(
    device: Device, awake: CpuLatency, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(cpu_latency, "time", SimpleNamespace(perf_counter=trio.current_time))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awake.run)
            for round_ in (1, 2):
                awake.served(0)
                awake.served(BURST_REQUESTS)
                for _ in range(10):
                    await trio.sleep(WINDOW_S / 2)
                    awake.served(BURST_REQUESTS // 2)
                assert device.asked() == [NONE, ANY] * (round_ - 1) + [NONE]
                await trio.sleep(3 * WINDOW_S)
                assert device.asked() == [NONE, ANY] * round_
            nursery.cancel_scope.cancel()

    trio.run(main, clock=autojump_clock)


@pytest.mark.parametrize("driver", ["intel_idle\n", "none\n", None])
def test_on_other_machines_nothing_is_asked_for(device: Device, clock: Clock, driver: str | None) -> None:
    path = Path(cpu_latency.DRIVER)
    path.unlink()
    if driver is not None:
        path.write_text(driver)
    awake = CpuLatency()
    awake.open()
    for _ in range(3):
        awake.served(BURST_REQUESTS)
    awake.close()
    assert not awake.can_ask
    assert (
        awake.refused == f"the cpuidle driver here is '{(driver or 'none').strip()}', and only 'haltpoll' gains by it"
    )
    assert device.asked() == []


def test_who_may_not_ask_is_served_as_well(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_latency, "DEVICE", str(device.path / "none"))
    awake = CpuLatency()
    awake.open()
    awake.served(BURST_REQUESTS)
    assert not awake.can_ask
    assert awake.refused == f"cannot open {device.path}/none: Not a directory"
    awake.close()


@pytest.mark.mounted
def test_a_mount_leaves_them_alone(serve: Serve) -> None:
    path = serve("memory:").path
    status = json.loads(os.getxattr(path, "user.fusebackend.status"))
    assert status["idle"] == "sleep" and "idle_refused" not in status


@pytest.mark.mounted
def test_a_mount_of_root_in_a_virtual_machine_asks_with_the_option(serve: Serve) -> None:
    try:
        asks = Path(cpu_latency.DRIVER).read_text().strip() == "haltpoll" and os.access(cpu_latency.DEVICE, os.W_OK)
    except OSError:
        asks = False
    path = serve("memory:", options=["idle=poll"]).path
    status = json.loads(os.getxattr(path, "user.fusebackend.status"))
    assert status["idle"] == ("poll" if asks else "sleep")
    assert ("idle_refused" in status) is not asks
