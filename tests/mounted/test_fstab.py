"""Mounts by /etc/fstab: the real mount(8), umount(8) and findmnt(8), with our helpers in a /sbin of their own."""

from __future__ import annotations

import os
from pathlib import Path

import mounts
import pytest
import served

pytestmark = pytest.mark.mounted

# /sbin has what it had, and our helpers, which are what the wheel's scripts are.
AROUND = r"""
set -eu
mkdir sbin before mnt
for helper in mount umount; do
    code="from fusebackend.cli.mount_helper import ${helper}_main as main; main()"
    printf '#!/bin/sh\nPYTHONPATH=%s exec %s -c "%s" "$@"\n' "$PYTHONPATH" "$PYTHON" "$code" >sbin/$helper.fusebackend
    chmod +x sbin/$helper.fusebackend
done
mount --bind "$(realpath /sbin)" before
mount -t tmpfs none "$(realpath /sbin)"
ln -s "$PWD"/before/* "$PWD/sbin/mount.fusebackend" /sbin/
ln -s "$PWD/sbin/umount.fusebackend" /sbin/umount.fuse.fusebackend
mount -t tmpfs none /run/mount 2>/dev/null || true  # mount(8)'s own notes
says() { printf '%s: ' "$1"; shift; "$@" 2>&1 && echo "= 0" || echo "= $?"; }
"""

FSTAB = r"""
printf 'default = "sqlite:agent.db"\n[routes]\n"/notes/" = "memory:"\n' > agent.toml
options=defaults,nosuid,noatime,_netdev,nofail,uhelper=fusebackend,x-systemd.requires=network.target
echo "$PWD/agent.toml $PWD/mnt fusebackend $options 0 0" > fstab
says all mount -T fstab -a
findmnt -n -o SOURCE,FSTYPE,OPTIONS mnt
echo hello > mnt/notes/hello; echo kept > mnt/kept
says again mount -T fstab -a
findmnt -n mnt | wc -l
says twice mount -T fstab mnt
(cd mnt; says busy umount "$OLDPWD/mnt") | grep -E "^(busy|=)"
says remount mount.fusebackend "$PWD/agent.toml" mnt -o remount,ro
says forced umount.fuse.fusebackend mnt -f
says umount umount -v "$PWD/mnt"
says read-only mount -T fstab -o ro mnt
cat mnt/kept; says write touch mnt/new
says end umount mnt
says fake mount -f -v -t fusebackend none mnt
says none findmnt mnt
mkdir 'a, b\c'
says odd mount -t fusebackend "dir:$PWD/a, b\\c" mnt
findmnt -n -r -o SOURCE mnt
says last umount mnt
"""


def run(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a script in namespaces of its own; returns its lines, with the directory as `HERE`."""
    mounts.require()
    if os.geteuid() != 0:
        pytest.skip("mount(8) and a mount namespace need root")
    return [line.replace(str(tmp_path), "HERE") for line in served.script(AROUND + script, tmp_path, monkeypatch)]


def test_a_line_of_fstab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(run(FSTAB, tmp_path, monkeypatch))

    def says(*wanted: str) -> None:
        """The next lines begin so."""
        for each in wanted:
            line = next(lines)
            assert line.startswith(each), [line, *lines]

    says("all: = 0")
    says("HERE/agent.toml fuse.fusebackend rw,nosuid,nodev,noatime,user_id=0,")
    says("again: = 0", "1")  # `mount -a` knows it by its source
    says("twice: mount.fusebackend: 'HERE/mnt' is mounted already by process ", "= 32")
    says("busy: umount.fusebackend: 'HERE/mnt' is busy", "= 32")
    says("remount: mount.fusebackend: -o remount is not possible: umount, and mount again with other options", "= 1")
    says("forced: umount.fusebackend: -f would lose what is not stored yet: if it must be, 'umount -i -f mnt'", "= 1")
    says("umount: unmounted HERE/mnt", "= 0")  # our helper's words: everything is stored
    says("read-only: = 0", "kept", "write: touch: cannot touch 'mnt/new': Read-only file system", "= 1", "end: = 0")
    says("fake: = 0", "none: = 1")
    says("odd: = 0", r"dir:HERE/a,\x20b\x5cc", "last: = 0")  # findmnt's escapes
    assert list(lines) == []
