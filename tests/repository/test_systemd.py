"""The unit `packaging/systemd/fusebackend@.service`: what it says, and what it does under a systemd as process 1.

The latter takes minutes, the most of it to make a root of Debian: marked `night`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from services import debian
from services.debian import Machine

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging/systemd/fusebackend@.service"

OWN_NAMESPACE = (
    "Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "Exec" + "Paths", "NoExec", "Bind", "Temporary",
    "Root", "Mount", "DynamicUser", "ConfigurationDirectory", "StateDirectory",
)  # fmt: skip
"""Beginnings of options with which systemd makes a mount namespace for a service (systemd.exec(5))."""


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    found = dict(line.split("=", 1) for line in lines)
    assert len(found) == len(lines)
    return found


def test_the_unit_gives_the_server_no_mount_namespace_of_its_own() -> None:
    assert not [name for name in settings() if name.startswith(OWN_NAMESPACE)]


def test_its_command_is_one_of_ours(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from fusebackend.cli.main import main

    command = settings()["ExecStart"].split()
    assert command[0] == "fusebackend"
    config = tmp_path / "agent.toml"
    config.write_text(f'mountpoint = "{tmp_path}/missing"\ndefault = "memory:"\n')
    words = [word.replace("%E/fusebackend/%i.toml", str(config)) for word in command[1:]]
    done = CliRunner().invoke(main, words)
    assert f"mount point '{tmp_path}/missing' does not exist" in done.output, done.output


CONFIG = 'mountpoint = "/mnt/agent"\ndefault = "sqlite:/var/lib/agent.db"\n[routes]\n"/slow/" = "python:slow:backend"\n'

SLOW = '''
import time
from fusebackend.backends import InMemoryBackend

class Slow(InMemoryBackend):
    """One that takes as long to close as /run/slow says."""

    def close(self):
        try:
            with open("/run/slow") as file:
                time.sleep(float(file.read()))
        except FileNotFoundError:
            pass
        super().close()

def backend():
    return Slow()
'''

LOAD = """
import os, sys, time
place, kept, number = sys.argv[1], sys.argv[2], 0
with open(kept, "w") as acknowledged:
    while True:
        number += 1
        try:  # the directory below the mount has no `work`: while nothing is mounted, nothing is written
            with open(f"{place}/{number}", "w") as file:
                file.write(str(number) * 100)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            time.sleep(0.01)
            continue
        print(number, file=acknowledged, flush=True)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    debian.require("systemd-nspawn")
    root = tmp_path_factory.mktemp("machine") / "root"
    debian.make_root(root, [*debian.RUNNING, *debian.BUILDING, "systemd"])
    debian.install(root)
    shutil.copy(UNIT, root / "etc/systemd/system")
    shutil.copy(UNIT, root / "etc/systemd/user")
    (root / "etc/fusebackend").mkdir()
    (root / "etc/fusebackend/agent.toml").write_text(CONFIG)
    next(root.glob("opt/fusebackend/lib/python3*/site-packages")).joinpath("slow.py").write_text(SLOW)
    debian.run(["chroot", str(root), "sh", "-ec", "mkdir /mnt/agent; systemctl enable fusebackend@agent.service"], 60)
    with debian.booted(root) as machine:
        yield machine


def show(machine: Machine, name: str, unit: str = "fusebackend@agent") -> str:
    return machine.sh(f"systemctl show --value -p {name} {unit}").strip()


def restart(machine: Machine) -> None:
    machine.sh("rm -f /run/slow; systemctl restart fusebackend@agent")


@pytest.mark.night
@pytest.mark.timeout(900)
class TestBooted:
    def test_systemd_finds_nothing_wrong(self, machine: Machine) -> None:
        machine.sh("cp '/etc/systemd/system/fusebackend@.service' /tmp/fusebackend@agent.service")
        assert machine.sh("systemd-analyze verify /tmp/fusebackend@agent.service") == ""
        user = "env HOME=/root XDG_RUNTIME_DIR=/run systemd-analyze --user"
        assert machine.sh(f"{user} verify /tmp/fusebackend@agent.service") == ""

    def test_it_is_mounted_at_boot(self, machine: Machine) -> None:
        assert machine.sh("systemctl is-active fusebackend@agent") == "active\n"
        said = machine.sh("systemctl status --no-pager fusebackend@agent")
        assert 'Status: "mounted on /mnt/agent: sqlite:/var/lib/agent.db, python:slow:backend"' in said
        assert "fuse.fusebackend" in machine.sh("findmnt /mnt/agent")
        socket = machine.sh("ls /run/fusebackend-agent/fusebackend")
        assert ".sock" in socket, socket

    def test_what_needs_it_starts_when_it_is_mounted(self, machine: Machine) -> None:
        unit = "[Unit]\\nRequires=fusebackend@agent.service\\nAfter=fusebackend@agent.service\\n"
        unit += "[Service]\\nType=oneshot\\nExecStart=/usr/bin/findmnt -n -o FSTYPE /mnt/agent\\n"
        machine.sh(f"printf '{unit}' > /run/systemd/system/after.service; systemctl daemon-reload")
        machine.sh("systemctl stop fusebackend@agent; systemctl start after")
        assert "fuse.fusebackend" in machine.sh("journalctl -u after -o cat")

    def test_restarts_under_load_lose_nothing_that_was_synced(self, machine: Machine) -> None:
        machine.sh("findmnt /mnt/agent && mkdir /mnt/agent/work && : > /var/tmp/acknowledged")
        load = machine.start(LOAD, "/mnt/agent/work", "/var/tmp/acknowledged")
        written = "wc -l < /var/tmp/acknowledged"
        try:
            for signal in (None, "KILL", None, "KILL", None):
                before = int(machine.sh(written))
                eventually(lambda before=before: int(machine.sh(written)) > before + 50, limit_s=60)
                if signal is None:
                    restart(machine)
                else:
                    pid = show(machine, "MainPID")
                    machine.sh(f"kill -KILL {pid}")
                    eventually(
                        lambda pid=pid: (
                            show(machine, "ActiveState") == "active" and show(machine, "MainPID") not in ("0", pid)
                        ),
                        limit_s=60,
                    )
            before = int(machine.sh(written))
            eventually(lambda: int(machine.sh(written)) > before, limit_s=60)
            assert load.poll() is None, load.communicate()
        finally:
            load.kill()
            load.communicate()
        check = "import sys; lost = [n for n in open(sys.argv[1]).read().split()"
        check += " if open(f'/mnt/agent/work/{n}').read() != n * 100]; print(lost)"
        assert machine.sh(f'python3 -c "{check}" /var/tmp/acknowledged') == "[]\n"
        assert "was cleared away" in machine.sh("journalctl -u fusebackend@agent -o cat")
        assert "left-over" not in machine.sh("journalctl -u fusebackend@agent -o cat")

    def test_a_stop_that_takes_longer_than_its_limit_stores_everything(self, machine: Machine) -> None:
        limit = "mkdir -p /run/systemd/system/fusebackend@agent.service.d; printf '[Service]\\nTimeoutStopSec=2s\\n'"
        machine.sh(f"{limit} > /run/systemd/system/fusebackend@agent.service.d/limit.conf; systemctl daemon-reload")
        restart(machine)
        machine.sh("echo late > /mnt/agent/late; echo 6 > /run/slow; systemctl stop fusebackend@agent")
        assert show(machine, "Result") == "success"
        assert "everything is stored" in machine.sh("journalctl -u fusebackend@agent -o cat -n 5")
        assert machine.sh("findmnt /mnt/agent", status=1) == ""
        restart(machine)
        assert machine.sh("cat /mnt/agent/late") == "late\n"

    def test_umount_ends_the_service(self, machine: Machine) -> None:
        restart(machine)
        machine.sh("fusebackend umount /mnt/agent")
        eventually(lambda: show(machine, "ActiveState") == "inactive", limit_s=60)
        assert show(machine, "Result") == "success"
        restart(machine)

    def test_what_is_wrong_is_not_tried_again(self, machine: Machine) -> None:
        for name, line, words in [
            ("pathless", 'default = "memory:"', "give a MOUNTPOINT"),
            ("typo", 'mountpiont = "/mnt/agent"', "unknown key 'mountpiont'"),
        ]:
            machine.sh(f"echo '{line}' > /etc/fusebackend/{name}.toml")
            machine.sh(f"systemctl start fusebackend@{name}", status=1)
            assert show(machine, "ActiveState", f"fusebackend@{name}") == "failed"
            assert words in machine.sh(f"journalctl -u fusebackend@{name} -o cat")

    def test_another_user_and_a_manager_of_its_own(self, machine: Machine) -> None:
        machine.sh(
            """set -e; chmod 666 /dev/fuse; useradd --create-home --uid 1000 agent; install -d -o agent /mnt/own
            printf 'mountpoint = "/mnt/own"\\ndefault = "memory:"\\n' > /etc/fusebackend/own.toml
            mkdir -p /run/systemd/system/fusebackend@own.service.d
            printf '[Service]\\nUser=agent\\n' > /run/systemd/system/fusebackend@own.service.d/user.conf
            systemctl daemon-reload; systemctl start fusebackend@own"""
        )
        (mine,) = json.loads(machine.sh("runuser -u agent -- fusebackend status --json /mnt/own"))
        assert mine["state"] == "alive"
        machine.sh("systemctl stop fusebackend@own")
        manager = "[Service]\\nUser=agent\\nDelegate=yes\\nEnvironment=XDG_RUNTIME_DIR=/run/user/1000\\n"
        manager += "Type=notify\\nExecStart=/lib/systemd/systemd --user\\n"
        asked = "runuser -u agent -- env XDG_RUNTIME_DIR=/run/user/1000 systemctl --user"
        machine.sh(
            f"""set -e; printf '{manager}' > /run/systemd/system/manager.service; systemctl daemon-reload
            install -d -o agent -m 700 /run/user/1000
            runuser -u agent -- sh -ec 'mkdir -p ~/.config/fusebackend ~/files
            echo "mountpoint = \\"$HOME/files\\"" > ~/.config/fusebackend/mine.toml'
            systemctl start manager; {asked} enable --now fusebackend@mine"""
        )
        assert machine.sh(f"{asked} is-active fusebackend@mine") == "active\n"
        assert "fuse.fusebackend" in machine.sh("findmnt /home/agent/files")
        machine.sh(f"{asked} stop fusebackend@mine; systemctl stop manager")
        assert machine.sh("findmnt /home/agent/files", status=1) == ""
