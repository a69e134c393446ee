"""What real programs change is recorded: an undo of their call gives the tree that was there before."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import pytest
from mounts import Serve

import fusebackend
from fusebackend.testing.each import each

pytestmark = pytest.mark.mounted

BEFORE = """
umask 022
git init -q -b main repo && cd repo
git config user.name t; git config user.email t@t; git config gc.auto 0
mkdir -p a/b c && for n in 1 2 3 4 5 6 7 8; do seq $n 200 > a/f$n; echo $n > c/g$n; done
ln -s a/f1 link; ln c/g1 c/hard; mkfifo fifo; chmod 4750 c/g2; truncate -s 3M sparse; echo x >> sparse
git add -A && git commit -qm one && cd ..
tar cf packed.tar repo/a
"""

PROGRAMS = {
    "rm": "rm -rf repo",
    "git": "cd repo && git checkout -q -b two && git rm -qr c && echo new > a/f1 && git add -A && "
    "git commit -qm two && git checkout -q main && git merge -q two && git clean -qfdx",
    "tar": "tar xf packed.tar -C repo && tar xf packed.tar && rm packed.tar",
    "sed": "sed -i s/1/one/ repo/a/f* && perl -pi -e s/2/two/ repo/c/g1 && chmod -R go-rwx repo && "
    "touch -d @5 repo/a/f2",
    "shell": "cd repo; : > a/f1; echo more >> a/f2; mv a/f3 a/f4; mv a moved; ln -f c/g3 c/g4; rm c/hard; mv -T c d; "
    "mkdir c; cp d/g5 c/g5; rm fifo; rm c/g5; truncate -s 5 sparse; ln -sf nowhere link",
    "python": "python3 -c \"import mmap,os;f=open('repo/a/f1','r+b');m=mmap.mmap(f.fileno(),0);m[0:1]=b'9';m.flush();"
    "os.replace('repo/a/f2','repo/a/f1');os.setxattr('repo/a/f3','user.a',b'1')\"",
}


def tree(path: Path) -> dict[str, tuple[object, ...]]:
    """Return each name of a tree with its kind, mode, size, modification time, attributes and bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            at = Path(directory) / name
            status = at.lstat()
            size, mtime_ns = (0, 0) if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
            content = ""
            if stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(at.read_bytes()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(at)
            xattrs = [] if stat.S_ISLNK(status.st_mode) else sorted(os.listxattr(at))
            found[str(at.relative_to(path))] = (status.st_mode, status.st_uid, size, mtime_ns, content, xattrs)
    return found


def bash(script: str, directory: Path) -> None:
    subprocess.run(["bash", "-ec", script], cwd=directory, check=True, start_new_session=True)


@pytest.mark.parametrize("url", ["sqlite:{tmp}/volume.db", "dir:{tmp}/files"], ids=["sqlite", "dir"])
def test_a_program_is_taken_back(url: str, tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    mounted = serve(url.format(tmp=tmp_path))
    with fusebackend.connect(mounted.path) as client:
        for number, case in enumerate(each(PROGRAMS)):
            with case as program:
                home = mounted.path / str(number)
                home.mkdir()
                bash(BEFORE, home)
                before = tree(mounted.path)
                bash(program, home)
                assert tree(mounted.path) != before
                (newest,) = client.log(limit=1)
                assert newest.kind == "session"
                result = client.undo(newest.call)
                assert result.conflicts == [] and result.partly == []
                assert client.status()["history"]["incomplete"] is None
                assert tree(mounted.path) == before
