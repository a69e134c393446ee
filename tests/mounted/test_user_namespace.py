"""Mounting without root's rights: in a user namespace where /dev/fuse can be opened."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import mounts
import pytest
import served

pytestmark = pytest.mark.mounted

WORK = """
set -e
fusebackend() { "$PYTHON" -m fusebackend "$@"; }
awk '{ print "ids", $3 }' /proc/self/uid_map
fusebackend doctor --json | grep -c 'a FUSE file system can be mounted'
fusebackend mount mnt --default sqlite:"$PWD"/volume.db
echo hello > mnt/file
chmod 600 mnt/file
ln mnt/file mnt/linked
ln -s file mnt/symbolic
fusebackend read --mount mnt /symbolic
fusebackend exec --mount mnt -- 'cat linked; touch made'
fusebackend branch create --mount mnt work
echo branch > mnt/.fusebackend/branches/work/file
cat mnt/file
stat -c '%a %h %n' mnt/file mnt/made
fusebackend umount mnt
"""


def test_a_mount_in_a_user_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts.require()
    (tmp_path / "mnt").mkdir()
    user = ("--user", "--map-root-user")
    if subprocess.run(["unshare", *user, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespace for this user")
    lines = served.script(WORK, tmp_path, monkeypatch, *user)
    assert lines[:2] == ["ids 1", "1"]  # one id alone is mapped: no rights outside
    assert lines[2].startswith(f"mounted {tmp_path}/mnt (process ")
    rest = [line for line in lines[3:] if not line.startswith("  ")]
    made = f"{tmp_path}/mnt/.fusebackend/branches/work"
    assert rest == ["hello", "hello", made, "hello", "600 2 mnt/file", "644 1 mnt/made", f"unmounted {tmp_path}/mnt"]
    assert not os.path.ismount(tmp_path / "mnt")
