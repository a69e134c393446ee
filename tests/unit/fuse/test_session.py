"""What is told of pyfuse3's own complaints, and what libfuse is told."""

from __future__ import annotations

import errno
import logging
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from fusebackend.config import MountPlan, MountSettings
from fusebackend.fuse.pyfuse3_patches.prune_notice import MINOR
from fusebackend.fuse.session import Session, libfuse_words  # the module has the filter of the log


@pytest.mark.parametrize(("number", "told"), [(errno.ENOENT, False), (errno.EINVAL, True)])
def test_an_answer_to_a_mount_that_is_gone_is_no_error(number, told, caplog) -> None:
    words = "fuse_release(): fuse_reply_* failed with %s"
    logging.getLogger("pyfuse3").error(words, os.strerror(number))
    assert (words % os.strerror(number) in caplog.text) is told


def test_other_errors_without_a_name_are_told(caplog) -> None:
    logging.getLogger("pyfuse3").error("lookup: %s", os.strerror(errno.ENOENT))
    assert "lookup" in caplog.text


def test_acls_are_nothing_for_libfuse() -> None:
    words = libfuse_words(MountPlan(mountpoint="/m", settings=MountSettings().but(["acl,noexec"])))
    assert "noexec" in words and "acl" not in words


@pytest.mark.parametrize(("minor", "is_told"), [(None, False), (0, False), (MINOR - 1, False), (MINOR, True)])
def test_inodes_are_pruned_where_the_kernel_knows_the_notice(minor: int | None, is_told: bool) -> None:
    """`minor` is the kernel's version; None: FUSE_INIT goes as it comes."""
    filesystem = SimpleNamespace(switches=SimpleNamespace(kernel_limits=False), pruning=SimpleNamespace(prune=None))
    session = Session(cast(Any, filesystem), MountPlan(mountpoint="/"), before_end=lambda: None)
    agreed = None if minor is None else SimpleNamespace(minor=minor, diversion=None)
    session._eager = cast(Any, SimpleNamespace(lowlevel=SimpleNamespace(init_flags=agreed)))
    trio.run(session._announce, None)
    assert (filesystem.pruning.prune is not None) is is_told
