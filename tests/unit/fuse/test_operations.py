"""Nothing escapes a handler: every error is an answer, and a defect is logged once with its traceback."""

from __future__ import annotations

import errno
import inspect
import logging
from typing import Any

import pyfuse3
import pytest
from for_each import for_each
from pyfuse3 import FUSEError

from fusebackend.fuse.operations import Operations, pack
from fusebackend.protocol import Attr
from fusebackend.vfs.calls import request
from fusebackend.vfs.inodes import Entry

NOT_HANDLERS = {"init", "stacktrace"}
HANDLERS = sorted(
    name for name, value in vars(pyfuse3.Operations).items() if inspect.isfunction(value) and name not in NOT_HANDLERS
)
BY_THE_KERNEL = {"access", "poll"}  # answered without asking anybody
TROUBLE = (errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT)
ANSWERED = [name for name in HANDLERS if name not in BY_THE_KERNEL | {"forget"}]


class Failing:
    """A file system each of whose methods fails."""

    wants_flush = True

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        async def fail(*arguments: object) -> None:
            raise self.error

        return fail


class Request:
    """Stands for any argument of a handler."""

    uid = gid = pid = 0
    st_mode = 0

    def __getattr__(self, name: str) -> bool:
        return False


def call(operations: Operations, name: str) -> Any:
    """Drive a handler to its end; it must not wait for anything."""
    handler = getattr(operations, name)
    count = len(inspect.signature(handler.__wrapped__ if hasattr(handler, "__wrapped__") else handler).parameters)
    if hasattr(handler, "__wrapped__"):
        count -= 1  # self
    coroutine = handler(*[Request() for _ in range(count)])
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def test_a_request_never_outlives_the_next_one_of_the_same_worker() -> None:
    seen: list[request.Request] = []

    class Seeing:
        def __getattr__(self, name: str) -> Any:
            async def see(*arguments: object) -> None:
                seen.append(request.current())

            return see

    filesystem: Any = Seeing()
    operations = Operations(filesystem)
    for coroutine in (
        operations.unlink(1, b"a", pyfuse3.RequestContext()),
        operations.release(1),
        operations.unlink(1, b"b", pyfuse3.RequestContext()),
    ):
        with pytest.raises(StopIteration):
            coroutine.send(None)
    assert [each.verb for each in seen] == ["unlink", "release", "unlink"]
    assert seen[0] is not seen[2]


def test_every_request_of_pyfuse3_has_a_handler() -> None:
    assert [name for name in HANDLERS if not inspect.iscoroutinefunction(getattr(Operations, name, None))] == []
    assert len(HANDLERS) > 25


@for_each(
    ("error", "number", "logged"),
    [
        (RuntimeError("injected"), errno.EIO, 1),
        *((OSError(number, "injected"), number, 0) for number in (*TROUBLE, errno.ENOENT)),
        (OSError("no number"), errno.EIO, None),
        *((OSError(number, "more"), errno.EIO, None) for number in ("text", -5, 99_999, 2**40)),
    ],
)
@for_each("name", ANSWERED)
def test_an_error_is_its_errno_and_a_defect_is_eio_and_logged_once(
    name: str, error: Exception, number: int, logged: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    operations = Operations(Failing(error))  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR), pytest.raises(FUSEError) as failure:
        call(operations, name)
    assert failure.value.errno == number
    assert logged in (None, len(caplog.records))
    if logged:
        (record,) = caplog.records
        assert record.exc_info is not None and str(record.exc_info[1]) == "injected"
        assert operations.counters["defects"] == 1


class Answering(Failing):
    """A file system each of whose methods gives the same answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Any:
        async def answer(*arguments: object) -> object:
            return self.answer

        return answer


@for_each(
    ("name", "answer"),
    [
        ("read", None), ("read", "text"), ("write", None), ("write", -1), ("write", 4), ("readlink", "text"),
        ("readlink", None), ("getxattr", "text"), ("getxattr", bytearray(b"x")), ("listxattr", ["user.a"]),
        ("listxattr", None), ("lookup", None), ("getattr", (1, 2)), ("create", None), ("open", 7), ("statfs", None),
    ],
)  # fmt: skip
def test_an_answer_of_the_wrong_kind_is_a_defect(name: str, answer: object, caplog: pytest.LogCaptureFixture) -> None:
    """Else pyfuse3 itself would fail on it, where nothing can catch it."""
    operations = Operations(Answering(answer))  # type: ignore[arg-type]
    arguments: tuple[object, ...] = (1, 0, b"abc") if name == "write" else (1, 0, 100)
    count = len(inspect.signature(getattr(operations, name).__wrapped__).parameters) - 1
    coroutine = getattr(operations, name)(*arguments[:count], *[Request() for _ in range(count - 3)])
    with caplog.at_level(logging.ERROR), pytest.raises(FUSEError) as failure:
        coroutine.send(None)
    assert failure.value.errno == errno.EIO
    assert len(caplog.records) == 1


def test_forget_has_no_answer_so_its_error_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    operations = Operations(Failing(RuntimeError("injected")))  # type: ignore[arg-type]
    coroutine = operations.forget([(2, 1)])
    with caplog.at_level(logging.ERROR), pytest.raises(StopIteration):
        coroutine.send(None)
    (record,) = caplog.records
    assert record.exc_info is not None


@pytest.mark.parametrize("name", sorted(BY_THE_KERNEL))
def test_what_the_kernel_decides_itself_is_enosys(name: str) -> None:
    with pytest.raises(FUSEError) as failure:
        call(Operations(Failing(AssertionError("asked"))), name)  # type: ignore[arg-type]
    assert failure.value.errno == errno.ENOSYS


def test_flush_is_declined_where_closing_cannot_fail() -> None:
    filesystem = Failing(AssertionError("asked"))
    filesystem.wants_flush = False
    with pytest.raises(FUSEError) as failure:
        call(Operations(filesystem), "flush")  # type: ignore[arg-type]
    assert failure.value.errno == errno.ENOSYS


def test_packing_keeps_every_field() -> None:
    attr = Attr(7, 0o104755, nlink=3, uid=1, gid=2, rdev=5, size=6, blocks=8)
    attr.atime_ns, attr.mtime_ns, attr.ctime_ns = -1, 2**62 + 3, 1_000_000_001
    packed = pack(Entry(99, attr, 2.5))
    assert (packed.st_ino, packed.st_mode, packed.st_nlink, packed.st_uid, packed.st_gid) == (99, 0o104755, 3, 1, 2)
    assert (packed.st_rdev, packed.st_size, packed.st_blocks) == (5, 6, 8)
    assert (packed.st_atime_ns, packed.st_mtime_ns, packed.st_ctime_ns) == (-1, 2**62 + 3, 1_000_000_001)
    assert packed.entry_timeout == packed.attr_timeout == 2.5


def test_absence_is_inode_0_with_a_timeout() -> None:
    packed = pack(Entry(0, None, 60.0))
    assert packed.st_ino == 0
    assert packed.entry_timeout == 60.0
