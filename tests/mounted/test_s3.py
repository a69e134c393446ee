"""`s3://` on a mount, over a real SeaweedFS: the POSIX cases and everyday programs, as far as SEMANTICS promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from services.seaweedfs import SeaweedFS

from fusebackend.schemes import SCHEMES
from fusebackend.testing.posix import Limits, PosixCases

pytestmark = [pytest.mark.mounted, pytest.mark.services]

OPTIONS = ("allow_other",) if os.geteuid() == 0 else ()


class TestPosix(PosixCases):
    features = SCHEMES["s3"].features
    limits = Limits(
        huge_files=False, sparse=False, byte_names=False, many_entries=100, other_users=bool(OPTIONS)
    )

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        tmp = tmp_path_factory.mktemp("posix")
        with (
            seaweedfs.bucket() as bucket,
            mounts.mounted(tmp / "mnt", "memory:", routes={"/s3": bucket.url("posix")}, options=OPTIONS) as server,
        ):
            yield server.path / "s3"

    @pytest.mark.parametrize("name", ["two\nlines", "back\\slash", "\x01", "\x7f"])
    def test_a_name_is_any_bytes(self, d: Path, name: str) -> None:
        """What no key can hold, or what one service would take for something else, is refused."""
        with pytest.raises(OSError, match="Invalid or incomplete multibyte"):
            (d / name).write_text("")
        assert os.listdir(d) == []

    def test_a_tree_of_200_levels(self, d: Path) -> None:
        """A key has 1,024 bytes at most."""
        deep = d
        with pytest.raises(OSError, match="File name too long"):
            while True:
                deep = deep / ("level-" + "x" * 90)
                deep.mkdir()
        assert len(str(deep.relative_to(d.parent))) > 900
