"""`SnapshotVolume`: a volume that keeps earlier states of itself, each a read-only volume."""

from __future__ import annotations

import abc
import errno
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fusebackend.protocol.commit_log import CommitLog, LogRow
from fusebackend.protocol.volume import Volume

__all__ = ["Snapshot", "SnapshotVolume"]


class Snapshot(NamedTuple):
    """A state that a volume keeps."""

    name: str
    """Unique in the volume while the snapshot exists; a name as of a file, in UTF-8 with surrogateescape."""
    number: int
    """Higher than those of all earlier snapshots of the volume, and never used again."""
    time_ns: int
    """When it was taken, since the epoch."""


class SnapshotVolume(Volume):
    """A volume with snapshots.

    Taking one costs the same for ten files and for a million: no bytes are copied. What is in it is what a reader
    through either face would have found at that moment, with all attributes, extended attributes, links and holes.
    """

    takes_snapshots: bool = True
    """False for a volume that keeps none, a branch: it has the methods of the class that it is made of."""

    may_go: Callable[[str], bool] | None = None
    """Called with the name of a snapshot, says that the volume may delete it rather than answer ENOSPC. The oldest goes
    first. Called with the volume's lock held."""

    before_commit: Callable[[], tuple[str, int] | None] | None = None
    """Called before changes become durable, with the volume's lock held: what is recorded of them is to be first.
    Returns the history, a UUID, and its last number: with the changes, the volume keeps it for `committed`."""

    on_snapshot: Callable[[str], None] | None = None
    """Called with the name of each snapshot that another host has taken or deleted, by any thread with no lock held."""

    def kept_below(self, node: int) -> str | None:
        """Return a name for `snapshot` that has the bytes of a file, as they are now, for as long as the volume is
        there; None if there is none. Asked of a volume that takes no snapshots: a branch has them in those below it."""
        return None

    def node_in(self, name: str, node: int) -> int:
        """Return the node that a file has in a snapshot. OSError: it is not there."""
        return node

    def committed(self, history: str) -> int | None:
        """Return the last number that `before_commit` gave for changes that are durable; 0 if none are. None where the
        volume does not keep it."""
        return None

    def keep_log(self, log: CommitLog | None) -> Sequence[LogRow] | None:
        """From now on, keep what changes note (`commit_log.NOTE`) in the transactions that make them.

        Args:
            log: whose rows they are. None: no more, and what is not needed goes.

        Returns:
            The rows that are there from before; None where the volume keeps no log, or keeps that of another history.

        Raises:
            OSError: they can't be read. None are kept then.
        """
        return None

    @property
    def kept_by(self) -> SnapshotVolume:
        """The volume that has these snapshots: itself, unless it shows the files of another one."""
        return self

    @property
    @abc.abstractmethod
    def is_changed(self) -> bool:
        """True if something but access times has changed since the newest snapshot was taken. May be true too often."""

    @abc.abstractmethod
    def snapshot_bytes(self) -> int:
        """Return the bytes of files that are kept for snapshots alone. It takes milliseconds."""

    @abc.abstractmethod
    def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots, in the order of their numbers."""

    @abc.abstractmethod
    def take_snapshot(self, name: str) -> Snapshot:
        """Keep the present state under a name. It is durable after the next `sync`.

        Raises:
            FileExistsError: there is a snapshot of that name.
            OSError: ENOSPC, EIO, EROFS, as of a write.
        """

    @abc.abstractmethod
    def delete_snapshot(self, name: str) -> None:
        """Forget a snapshot. What nobody else needs is freed later, in the background.

        Raises:
            FileNotFoundError: there is none of that name.
        """

    @abc.abstractmethod
    def snapshot(self, name: str) -> Volume:
        """Return a snapshot as a read-only volume; the same one for the same snapshot.

        Its nodes are the nodes that the volume had then. Every change is EROFS, reads move no access times. After
        `delete_snapshot` each call is ESTALE. It ends with the volume: `close` is not to be called.

        Raises:
            FileNotFoundError: there is none of that name.
        """

    def forget_versions(self, nodes: Collection[int]) -> list[str]:
        """Take the files of these nodes out of every snapshot, with their bytes and extended attributes, and erase what
        the storage has left of bytes that are no file's any more, of any file: free space, logs, the search index.

        What the files are now stays. It may take as long as copying all of the storage, and nothing else can be done
        with the volume meanwhile. After an error the same call does the rest.

        Args:
            nodes: of files, links and special files, not of directories.

        Returns:
            Where such bytes may still be: a line for each place that can't be reached from here.

        Raises:
            OSError: ENOTSUP, the volume can't do it; ENOSPC, EIO, EBUSY.
        """
        raise OSError(errno.ENOTSUP, "the volume can't take files out of its snapshots")
