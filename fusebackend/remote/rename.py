"""`Renames`: deletion and rename of names, over `Remote.delete` and `Remote.rename`.

A file moves with its own lock held and its target's, a directory alone: a file stored below its old name meanwhile
would be left behind. Dirty buffers are stored first.
"""

from __future__ import annotations

import contextlib
import errno

from fusebackend.base.errors import oserror
from fusebackend.protocol import RENAME_NOREPLACE
from fusebackend.protocol.remote import Remote
from fusebackend.remote.entry import OWN, Entry
from fusebackend.remote.files import RemoteFiles
from fusebackend.remote.parallel import Gate
from fusebackend.remote.tree import Tree


class Renames:
    """See the module's docstring."""

    def __init__(self, remote: Remote, tree: Tree, files: RemoteFiles, gate: Gate) -> None:
        self._remote = remote
        self._tree = tree
        self._files = files
        self._gate = gate

    def rename(
        self, entry: Entry, old_directory: Entry, old_name: bytes, directory: Entry, name: bytes, flags: int
    ) -> None:
        """Move an entry to a name in a directory. Errors as `Volume.rename`; EINVAL for RENAME_EXCHANGE."""
        if flags not in (0, RENAME_NOREPLACE):
            raise oserror(errno.EINVAL, name)
        self.finish()
        if entry.is_dir:
            self._files.store_all(entry.tree())  # most of them before the others have to wait
        with self._gate.alone() if entry.is_dir else self._gate.passing(), contextlib.ExitStack() as locks:
            target = self._tree.child(directory, name)
            # Always in the same order, for two files may change places.
            for one in sorted({entry, *([target] if target is not None else [])}, key=lambda one: one.node):
                locks.enter_context(one.lock)
            if not entry.is_at(old_directory, old_name):
                raise oserror(errno.ENOENT, old_name)  # another thread was faster
            if target is not None and not target.is_at(directory, name):
                raise oserror(errno.ESTALE, name)
            if target is not None and flags == RENAME_NOREPLACE:
                raise oserror(errno.EEXIST, name)
            if target is entry:
                return
            self._require_possible(entry, target, directory, name)
            segment = self._remote.admit(name, directory.key, is_dir=entry.is_dir)
            if target is not None and not target.is_dir:
                self._files.keep_open(target)
            self.keep(entry)
            empty = self._move(entry, target, directory.key + segment)
            if target is not None:
                self._tree.unlinked(target)
            self._tree.relink(entry, directory, name, segment)
        if not self._remote.abilities.keeps_directories:
            self._tree.expire()
            for key in empty:
                self._tree.make_directories(key)
            self._remote.expire()

    def _require_possible(self, entry: Entry, target: Entry | None, directory: Entry, name: bytes) -> None:
        if entry.is_gone or directory.is_gone:
            raise oserror(errno.ENOENT, name)
        entry.require_writable()
        if entry.is_dir and directory.is_within(entry):
            raise oserror(errno.EINVAL, name)
        if target is None:
            return
        target.require_writable()
        if target.is_dir and not entry.is_dir:
            raise oserror(errno.EISDIR, name)
        if entry.is_dir:
            if not target.is_dir:
                raise oserror(errno.ENOTDIR, name)
            self.require_empty(target)

    def require_empty(self, directory: Entry) -> None:
        """ENOTEMPTY when there is something in a directory, here or in the remote."""
        with self._tree.lock:
            local = any(child.is_ahead for child in directory.children.values())
        if local or not self._remote.holds_only(directory.key):
            raise oserror(errno.ENOTEMPTY, directory.name)

    def finish(self) -> None:
        """Carry on renames that have failed half-way."""
        if self._remote.unfinished:
            with self._gate.alone():
                self._remote.finish()
            self._tree.expire()

    def delete(self, entry: Entry) -> None:
        """Delete a file or an empty directory in the remote. ENOTSUP, EACCES."""
        if not self._remote.abilities.can_delete:
            raise OSError(errno.ENOTSUP, f"{self._remote.name} has no delete")
        entry.require_writable()
        self._remote.delete(entry.key)

    def keep(self, entry: Entry) -> None:
        """See that the directory stays when this is taken out of it: it may have been there because of this alone."""
        directory = entry.parent
        assert directory is not None
        if not self._remote.abilities.keeps_directories or (entry.local and not entry.tried):
            return
        if directory.parent is None or directory.listing.marker:
            return
        with self._tree.lock:
            children = directory.children
            others = (name for name in directory.listing.infos if name != entry.name)
            stays = any(name not in children or not children[name].local for name in others)
        if not stays:
            self.put_marker(directory, replace=True)

    def put_marker(self, directory: Entry, *, replace: bool) -> None:
        """Store the sign of a directory, with its attributes. EEXIST unless `replace`."""
        directory.etag = self._remote.make_directory(directory.key, directory.stamp, replace=replace)
        directory.seen, directory.listing.marker = OWN, True

    def _move(self, entry: Entry, target: Entry | None, new: str) -> list[str]:
        """Move in the remote what it has; keys of empty directories that it could not move."""
        old = entry.key
        for below in entry.tree():
            if below.dirty:
                with below.lock:
                    self._files.uploads.store(below)
        keeps_directories = self._remote.abilities.keeps_directories
        if not keeps_directories and not self._remote.has(old):
            return []
        if entry.is_dir:
            new += "/"
            if target is not None and not keeps_directories and self._remote.has(target.key):
                self.delete(target)

        def copied() -> None:
            for below in entry.tree():
                is_moved = self._remote.abilities.ranges and not below.is_dir
                if is_moved and (below.opens or below is entry):
                    with below.lock:
                        self._files.relocate(below, new + below.key[len(old) :])

        replaced = (target.etag,) if target is not None and not target.is_dir and not target.local else None
        return list(self._remote.rename(old, new, entry.etag, replaced, copied))
