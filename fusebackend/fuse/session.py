"""`Session`: one mount, from `mount(2)` to its end.

pyfuse3 is called here, in `operations.py` and in `notifier.py`; `pyfuse3_patches/` knows how it reads and answers
requests. No other module knows of it.

pyfuse3 keeps its session in module globals, so a process serves one mount; `Session` refuses a second.

Threads: `run` takes the calling thread for the loop. Notices to the kernel are sent from other threads only, since one
may wait for a request to be answered first (docs/kernel-races.md, "Deadlocks"): after a change on the loop's own
thread, the thread of `notifier.py` sends it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pyfuse3
import trio

from fusebackend.config import MountPlan
from fusebackend.fuse.notifier import Notifier
from fusebackend.fuse.operations import Operations
from fusebackend.fuse.pyfuse3_patches import kernel_limits
from fusebackend.fuse.pyfuse3_patches.cached_opendir import CachedOpendir
from fusebackend.fuse.pyfuse3_patches.cpu_latency import CpuLatency
from fusebackend.fuse.pyfuse3_patches.eager_loop import EagerTrio
from fusebackend.fuse.pyfuse3_patches.init_flags import FUSE_POSIX_ACL, InitFlags
from fusebackend.fuse.pyfuse3_patches.prune_notice import MINOR, PruneNotice
from fusebackend.linux.mount_table import SUBTYPE, MountError
from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

NOTICE_TIMEOUT_S = 10.0
"""How long the end of a mount waits for notices on their way; one takes as long as a request."""

SPARE_BYTES = 16 << 20
"""Kept for the end of a server that has no memory left: storing takes some. It is never touched, and costs nothing."""

MAX_TASKS = 4096
"""Requests in the works at once. Each system call that waits for a hung route is one, until its deadline; others are
served only while there are more. A task that waits costs some 10 KiB."""


ACL = "acl"
"""The word of a plan's options that is not libfuse's: the kernel is to check POSIX ACLs."""


def libfuse_words(plan: MountPlan) -> set[str]:
    """Return libfuse's `-o` words for a plan. It does not know of ACLs, on which FUSE_INIT agrees."""
    source = re.sub(r"([\\,])", r"\\\1", plan.source)  # as libfuse's fuse_opt_add_opt_escaped does
    words = {f"fsname={source}", f"subtype={SUBTYPE}", "default_permissions", *plan.settings.options} - {ACL}
    if plan.settings.allow_other:
        words.add("allow_other")
    if plan.settings.read_only:
        words.add("ro")
    return words


def is_late_answer(record: logging.LogRecord) -> bool:
    """Whether pyfuse3 reports an answer that nobody waits for: the mount ended between a request and its answer.

    A RELEASE is sent and not waited for, so that it may be on its way when the last mount goes; write(2) on /dev/fuse
    knows no such request then (ENOENT). Nothing is lost by it.
    """
    return "fuse_reply_* failed" in str(record.msg) and record.args == (os.strerror(errno.ENOENT),)


logging.getLogger("pyfuse3").addFilter(lambda record: not is_late_answer(record))


class Session:
    """One mount of a `FileSystem`. `run` serves it; `stop` ends it, from any thread."""

    _serving = threading.Lock()

    def __init__(
        self,
        filesystem: FileSystem,
        plan: MountPlan,
        *,
        before_end: Callable[[], None],
    ) -> None:
        """
        Args:
            filesystem: the tree to mount.
            plan: where, and how.
            before_end: called in a thread before the unmount, while the mount still answers, to end its users.
        """
        self.filesystem = filesystem
        self.mountpoint = plan.mountpoint
        self._plan = plan
        self.operations = Operations(filesystem)
        self._token: trio.lowlevel.TrioToken | None = None
        self._eager: EagerTrio | None = None
        self._cpu_latency = CpuLatency()
        self._stop = trio.Event()  # of the loop's thread
        self._mounted = False
        self._stop_asked = False  # of any thread, also before there is a loop
        self._before_end = before_end

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Mount, serve until unmounted or stopped, and make all volumes durable. The volumes are not closed.

        Args:
            on_ready: called in another thread as soon as the mount answers.

        Raises:
            MountError: this process serves a mount already, or the kernel refused this one.
            OSError: a volume could not be made durable at the end.
        """
        if not self._serving.acquire(blocking=False):
            raise MountError(errno.EBUSY, "this process serves a mount already; pyfuse3 can hold only one")
        try:
            spare = bytearray(SPARE_BYTES)
            try:
                trio.run(self._serve, on_ready)
            except MemoryError:
                log.error("no memory is left: the mount on %s ends, and everything is stored first", self.mountpoint)
                raise
            finally:
                del spare
                self.filesystem.detach()
                if self._eager is not None:
                    self._eager.close()
                self._cpu_latency.close()
                if self._mounted:
                    pyfuse3.close(unmount=True)
                self.filesystem.close()
        finally:
            self._serving.release()

    def stop(self) -> None:
        """End `run`: unmount, lazily if files are still open. For any thread and handler of a signal, and harmless
        when it has ended."""
        self._stop_asked = True
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)

    def status(self) -> dict[str, Any]:
        """Return what `fusebackend status --json` shows of the session."""
        return {
            "mountpoint": self.mountpoint,
            "idle": "poll" if self._cpu_latency.can_ask else "sleep",
            **({"idle_refused": self._cpu_latency.refused} if self._cpu_latency.refused else {}),
            "known_inodes": len(self.filesystem.inodes),
            "open_files": len(self.filesystem.files),
            "counters": dict(sorted(self.operations.counters.items())),
        }

    @property
    def _agreed(self) -> InitFlags | None:
        """What FUSE_INIT has agreed on beyond libfuse's."""
        return None if self._eager is None else self._eager.lowlevel.init_flags

    def _has_acls(self) -> bool:
        return self._agreed is not None and bool(self._agreed.agreed & FUSE_POSIX_ACL)

    def _mount(self) -> None:
        setattr(pyfuse3, "trio", self._eager or trio)  # noqa: B010 - not in its types
        try:
            pyfuse3.init(cast(pyfuse3.Operations, self.operations), self.mountpoint, libfuse_words(self._plan))
        except RuntimeError as error:
            message = f"cannot mount on '{self.mountpoint}': {error}; libfuse gave the reason on standard error"
            raise MountError(errno.EIO, message) from None
        self._mounted = True

    async def _serve(self, on_ready: Callable[[], None] | None) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._stop_asked:
            self._stop.set()
        on = self.filesystem.switches
        notifier = Notifier(self.filesystem.inodes, on.notify_again)
        self.filesystem.attach(notifier)
        if on.eager_loop:
            cached_opendir = self.operations.cached_opendir = CachedOpendir(notifier)
            init_flags = partial(InitFlags, acls=ACL in self._plan.settings.options) if on.init_flags else None
            self._eager = EagerTrio(cached_opendir, self._cpu_latency, init_flags)
            self.filesystem.xattrs.has_acls = self._has_acls
        if self._plan.settings.idle == "poll":
            self._cpu_latency.open()
        try:
            async with trio.open_nursery() as nursery:
                self._mount()
                nursery.start_soon(self._announce, on_ready)
                nursery.start_soon(self._end_when_stopped, notifier)
                nursery.start_soon(self._cpu_latency.run)
                await pyfuse3.main(max_tasks=MAX_TASKS)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # one cause, one error: the tasks beside it were only cancelled
        finally:
            notifier.close()
            with trio.CancelScope(shield=True):
                await _wait_for_notices(notifier)

    async def _announce(self, on_ready: Callable[[], None] | None) -> None:
        # A thread asks: the loop must not wait for its own mount.
        try:
            # Left alone when the mount ends first: it then waits for an answer that only the unmounting gives.
            status = await trio.to_thread.run_sync(os.stat, self.mountpoint, abandon_on_cancel=True)
        except OSError as error:
            log.error("the mount on %s does not answer: %s", self.mountpoint, error.strerror)
            return
        agreed = self._agreed
        if agreed is not None and agreed.minor >= MINOR:
            self.filesystem.pruning.prune = PruneNotice(agreed.diversion).send
        if self.filesystem.switches.kernel_limits:
            read_ahead_kib = (
                kernel_limits.BLOCKING_READ_AHEAD_KIB
                if any(route.executor.blocking for route in self.filesystem.tree.routes)
                else kernel_limits.READ_AHEAD_KIB
            )
            await trio.to_thread.run_sync(
                kernel_limits.raise_limits, status.st_dev, read_ahead_kib, abandon_on_cancel=True
            )
        if on_ready is not None:
            await trio.to_thread.run_sync(on_ready, abandon_on_cancel=True)

    async def _end_when_stopped(self, notifier: Notifier) -> None:
        """End the loop, but not while a thread sends a notice to the kernel.

        Such a notice waits for a client's request to be answered; were it left unanswered, both would wait for ever.
        """
        await self._stop.wait()
        await trio.to_thread.run_sync(self._before_end, abandon_on_cancel=True)
        notifier.close()
        await _wait_for_notices(notifier)
        pyfuse3.terminate()


async def _wait_for_notices(notifier: Notifier) -> None:
    """Go on answering until no notice is on its way."""
    with trio.move_on_after(NOTICE_TIMEOUT_S) as waiting:
        while not notifier.idle:
            await trio.sleep(0.001)
    if waiting.cancelled_caught:
        log.error("a notice to the kernel is still on its way after %g s", NOTICE_TIMEOUT_S)
