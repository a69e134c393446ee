"""An archive that is replaced at its path while it is shown."""

from __future__ import annotations

import errno
import os
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("fsspec")

from nodes import node_at, whole
from replacing import REPLACED, behind_a_link

from fusebackend.testing.each import each
from fusebackend.testing.posix.case import refused
from fusebackend.urls import open_backend


def make_zip(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def make_tar(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, BytesIO(text.encode()))


ARCHIVES: Final[dict[str, Callable[[Path, dict[str, str]], None]]] = {"zip": make_zip, "tar": make_tar}
SUFFIXES: Final = {"zip": ".zip", "tar": ".tar.gz"}
FIRST: Final = {"both.txt": "old", "old.txt": "o"}
SECOND: Final = {"both.txt": "a new one", "new.txt": "n"}


def opened(kind: str, path: Path) -> Any:
    return open_backend(f"fsspec:{kind}://?fo={path}&ttl=0")


def shown(backend: Any) -> dict[str, str]:
    names = [entry["path"] for entry in backend.ls("/").entries]
    return {answer.path.strip("/"): answer.content.decode() for answer in backend.download_files(names)}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_the_files_of_the_new_archive_are_shown(tmp_path: Path, kind: str) -> None:
    for case in each(REPLACED):
        with case as replace:
            path = tmp_path / f"{replace.__name__}{SUFFIXES[kind]}"
            new = tmp_path / f"{replace.__name__}-new{SUFFIXES[kind]}"
            ARCHIVES[kind](path, FIRST)
            ARCHIVES[kind](new, SECOND)
            behind_a_link(path)
            backend = opened(kind, path)
            assert shown(backend) == FIRST
            replace(path, new)
            assert shown(backend) == SECOND
            assert backend.volume.trouble is None
            backend.close()


def test_an_open_file_keeps_its_bytes_and_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    path, new = tmp_path / "a.zip", tmp_path / "new.zip"
    make_zip(path, FIRST)
    make_zip(new, SECOND)
    backend = opened("zip", path)
    volume = backend.volume
    held = node_at(volume, "/old.txt")
    volume.open(held, os.O_RDONLY)
    assert volume.read(held, 0, 10) == b"o"
    (tmp_path / "junk").write_text("no archive")
    os.replace(tmp_path / "junk", path)
    refused(errno.EIO, volume.lookup, 1, b"both.txt")
    assert volume.trouble is not None and "was replaced, and can't be used" in volume.trouble[1]
    os.replace(new, path)
    assert whole(volume, node_at(volume, "/both.txt")) == b"a new one"
    assert volume.read(held, 0, 10) == b"o"
    volume.release(held, os.O_RDONLY)
    path.unlink()
    assert shown(backend) == SECOND, "what was open can be read"
    assert volume.trouble is not None and "was moved or deleted" in volume.trouble[1]
    backend.close()
