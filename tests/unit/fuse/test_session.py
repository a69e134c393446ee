"""What is told of pyfuse3's own complaints, and what libfuse is told."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from fusebackend.config import MountPlan, MountSettings
from fusebackend.fuse.session import libfuse_words  # the module has the filter of the log


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
