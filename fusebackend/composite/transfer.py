"""A file or a directory moves from one backend into another, and no crash can lose it.

The order makes it safe: see that the source may be removed, copy, read the copy back and compare, put it in place, make
it durable, see that the source is still what was copied, take the source away. A failure leaves the source as it was
and removes the copy: what is gone of the source by then is made again from the copy. A crash leaves the source, the
copy, or both, and never neither; so does a backend that doesn't answer when the source is to be deleted.

The rules of views and routes decide about every path of both sides before anything is copied. From then on the volumes
are used without them, for the server's own hidden names are none that rules know.

Between volumes of this package everything is kept: links, modes, owners (where this process may set them), times,
extended attributes, holes. The copy grows under a hidden name next to its place and gets its name by one rename; the
source leaves by one rename too, so that nothing written to it meanwhile is lost. A backend with the agent face alone
holds files and nothing else: special files and empty directories are refused before anything is copied.

It blocks. No lock is held while bytes are copied. When its caller no longer waits (`base/budget.py`), it ends after the
file that it is at, and the copy is removed.
"""

from __future__ import annotations

import contextlib
import copy as copying
import errno
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from fusebackend.base import budget, errors, paths
from fusebackend.base.deadline import GivenUp
from fusebackend.base.paths import AgentPath
from fusebackend.dialects.agent_face import AgentFace, Guard
from fusebackend.protocol import RENAME_NOREPLACE, Attr, AttrChanges, Caller, Change, DeleteResult, Volume, verbs
from fusebackend.protocol.volume import silently
from fusebackend.remote.files_update import collecting
from fusebackend.remote.volume import ForeignVolume, volume_of
from fusebackend.rules import met
from fusebackend.volumes import placing
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.contents import data_pieces
from fusebackend.volumes.removal import REMOVED_AT_ONCE
from fusebackend.volumes.walk import Place, below, find, known, resolve

log = logging.getLogger(__name__)

T = TypeVar("T")

DIRECTORY_MODE = 0o755

CHANGED = "It was changed while it was being moved"

Names = tuple[bytes, ...]
"""The way from the top of the moved tree to something in it; empty for the top itself."""


class MovedItem(NamedTuple):
    """Something in the moved tree, as it was when it was looked at."""

    names: Names
    node: int  # whose number may be another one by now than that of `attr`
    attr: Attr  # a copy: a volume may change the object that it has given
    read_only: bool  # its backend says that it can't be taken away

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.attr.mode)

    @property
    def state(self) -> tuple[object, ...]:
        """Compared before the source is removed. Reading it has moved the access time."""
        attr = self.attr
        return (self.names, attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.mtime_ns, attr.ctime_ns)


class HiddenNames(NamedTuple):
    """The names that a move gives for a while: to what is left of the source, and to the copy that grows. Paths inside
    the backends; None where one has no such names."""

    source: AgentPath | None
    target: AgentPath | None


NoteHidden: TypeAlias = Callable[[HiddenNames], Callable[[], None]]
"""Notes such names before they are given, and returns what is called when nothing has them any more. After a kill,
what has one can be removed: the source is whole, or else the copy."""


def transfer(
    source: AgentFace,
    source_path: AgentPath,
    target: AgentFace,
    target_path: AgentPath,
    note: NoteHidden = lambda names: lambda: None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move; paths are those inside the backends. Returns the `files_update`s of source and target, if state-backed.

    Raises:
        OSError: ENOENT; EEXIST for the target; EROFS and ENOTSUP where one of them lacks a feature; EBUSY when the
            source changed meanwhile; errors of the volumes. The source is as it was then.
    """
    ruled, seen = _volume_of_paths(source), _volume_of_paths(target)
    source, target = _without_rules(source, ruled), _without_rules(target, seen)
    volume, into = _volume_of_paths(source), _volume_of_paths(target)
    for foreign, face in ((volume, source), (into, target)):
        if isinstance(foreign, ForeignVolume):
            face.guarded("move", foreign.expire)
    # Links on the way are followed here alone, where rules see where they lead.
    here = resolve(_guarded(ruled, source), source_path, follow=False)
    there = resolve(_guarded(seen, target), target_path, follow=False)
    reading, source_path = _guarded(volume, source), here.path
    place = resolve(reading, source_path, follow=False)
    items = list(_tree(reading, (place if here.attr is not None else here).found))
    with met.deciding():
        source.guarded("move", partial(ruled.require_removable, source_path), len(items))
        seen.require_new(*there.missing_paths, *(_below(there.path, item.names) for item in items), changed=True)
        _require_able(source, target, volume, into, items)  # after the rules, for it names what it finds
        if there.attr is not None:
            raise errors.oserror(errno.EEXIST)
    copy = _Copy(target, there.path, into, seen)
    aside = _beside(source_path, _hidden(place.name)) if _hides(volume) else None
    names = HiddenNames(aside, _beside(there.path, copy.hidden) if _hides(into) else None)
    with _noted(note, names, reading, _guarded(into, target)):
        with contextlib.ExitStack() as undoing, collecting() as stored:
            undoing.callback(copy.undo)
            for item in items:
                if budget.current().cancelled:
                    raise errors.oserror(errno.ECANCELED)
                copy.add(reading, item._replace(node=known(reading, item.node, _below(source_path, item.names)).node))
            copy.finish(items)
            if aside is not None:
                left = aside
                try:
                    source.guarded("move", partial(_set_aside, volume, place, items, ruled, aside), len(items))
                except GivenUp as error:  # it may be set aside later
                    undoing.pop_all()
                    raise OSError(errno.EIO, f"It was copied, but the source may not be removed: {error}") from error
            else:
                _require_unchanged(reading, place, items, copy.digests)
                left = source_path
            undoing.pop_all()  # from here on the copy is kept, but where the source is whole again
        try:
            deleted = _delete(source, left, silent=left != source_path)
            if deleted.error is None:
                return deleted.files_update or {}, stored
            back = _Copy(source, source_path, volume, volume, paths.to_name(paths.parent_and_name(left)[1]))
            _put_back(back, reading, left, items, _guarded(into, target), there.path)
        except OSError as error:
            rest = "" if left == source_path else f"; what is left of it is '{paths.parent_and_name(left)[1]}'"
            text = f"It was copied, but the source could not be removed: {error.strerror}{rest}"
            raise OSError(errno.EIO, text) from error
        copy.undo()
        why = deleted.error.removeprefix(verbs.DELETE.failed.format(left) + ": ")
        raise OSError(errno.EIO, f"Its source could not be removed, and stays as it was: {why}")


def _without_rules(face: AgentFace, volume: Volume) -> AgentFace:
    if volume.without_rules is volume:
        return face
    plain = AgentFace(VolumeBackend(volume.without_rules), face.name)
    plain.guard = face.guard
    return plain


class _Guarded:
    """A volume, each call of which has the deadline of its route. Hold no lock of it: the calls are made in threads of
    their own."""

    def __init__(self, volume: Volume, face: AgentFace) -> None:
        self._volume, self._face = volume, face

    def walking(self, names: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._volume, name)
        return (lambda *args: self._face.guarded("move", partial(found, *args))) if callable(found) else found


def _guarded(volume: Volume, face: AgentFace) -> Volume:
    return volume if face.guard is None else cast(Volume, _Guarded(volume, face))


class _Answers:
    """Runs calls as a guard does, and keeps what a deletion raises: it may have been made, or be made later."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard
        self.error: Exception | None = None

    def run(self, verb: str, call: Callable[[], T], files: int = 1) -> T:
        try:
            return call() if self._guard is None else self._guard.run(verb, call, files)
        except Exception as error:
            if verb == "delete" and not isinstance(error, NotImplementedError):
                self.error = error
            raise


def _delete(source: AgentFace, path: AgentPath, *, silent: bool) -> DeleteResult:
    """Delete. OSError: there was no answer.

    Args:
        silent: it was reported as deleted.
    """
    direct = copying.copy(source)
    direct.guard = answers = _Answers(source.guard)
    with silently() if silent else contextlib.nullcontext():
        deleted = direct.delete(path)
    if answers.error is not None:
        raise OSError(errno.EIO, deleted.error) from answers.error
    return deleted


def _put_back(
    back: _Copy, volume: Volume, left: AgentPath, items: list[MovedItem], into: Volume, copied: AgentPath
) -> None:
    """Make what is gone of the source from its copy.

    Args:
        left: the path of what is there of it.
        copied: that of the copy, in `into`.
    """
    volume.expire()
    missing = []
    for item in items:
        copy = item._replace(node=resolve(into, _below(copied, item.names), follow=False).found.node)
        there = find(volume, _below(left, item.names))
        if there is None:
            missing.append(copy)
        else:
            back.nodes[item.names] = there.node
            back.twins[_twin(into, copy)] = item.names
    for item in missing:
        back.add(into, item._replace(node=known(into, item.node, _below(copied, item.names)).node))
    back.finish(items)


def _hides(volume: Volume) -> bool:
    """Return True for a volume in which a move has hidden names: it can rename, and not by the verbs of a stranger. A
    read-only one says so when it is asked to."""
    can_rename = type(volume).rename is not Volume.rename or volume.features.read_only
    return can_rename and not isinstance(volume, ForeignVolume)


def _twin(volume: Volume, item: MovedItem) -> bytes | int:
    """Return what two names of one file have in common."""
    return volume.lasting(item.node) or item.node


def _below(top: AgentPath, names: Names) -> AgentPath:
    return AgentPath("/".join([top, *map(paths.to_text, names)]))


def _volume_of_paths(face: AgentFace) -> Volume:
    """Return the volume that has the agent's paths. An unconfined `FilesystemBackend` takes the machine's paths, while
    its volume shows its root directory; so it has to be spoken to as a stranger."""
    return volume_of(face.backend) if face.start == paths.ROOT else ForeignVolume(face.backend)


def _tree(volume: Volume, top: Attr) -> Iterator[MovedItem]:
    """A directory comes before what is in it."""
    yield _item((), top)
    for path, attr in below(volume, top.node) if top.is_dir else ():
        yield _item(tuple(path.split(b"/")[1:]), attr)


def _item(names: Names, attr: Attr) -> MovedItem:
    kept = Attr(attr.node, attr.mode)
    kept.take(attr)
    return MovedItem(names, attr.node, kept, getattr(attr, "read_only", False))


def _require_able(source: AgentFace, target: AgentFace, volume: Volume, into: Volume, items: list[MovedItem]) -> None:
    """Refuse moves that would fail before anything is copied."""
    if volume.features.read_only or into.features.read_only:
        raise errors.oserror(errno.EROFS)
    if source.lacks("delete"):
        raise OSError(errno.ENOTSUP, f"{source.name} can't delete, so nothing can be moved out of it")
    holding = {item.names[:-1] for item in items if item.names}
    for item in items:
        if item.read_only:
            raise errors.oserror(errno.EACCES)
        if item.is_file:
            continue
        if item.attr.is_dir:
            kind, able = "an empty directory", item.names in holding or not isinstance(into, ForeignVolume)
        elif stat.S_ISLNK(item.attr.mode):
            kind, able = "a symbolic link", into.features.symlinks
        else:
            kind, able = "a special file", into.features.special_files
        if not able:
            shown = paths.to_text(b"/".join(item.names)) or "It"
            raise OSError(errno.ENOTSUP, f"{shown!r} is {kind}, which {target.name} can't hold")


class _SparseDigest:
    """Of a file, whichever of its zeros are holes."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b()
        self.size = 0

    def add(self, offset: int, piece: bytes) -> None:
        self.size = offset + len(piece)
        ended = piece.rstrip(b"\0")
        if ended:
            self._hash.update(b"%d %d " % (offset, len(ended)))
            self._hash.update(ended)

    def value(self) -> bytes:
        self._hash.update(b"%d" % self.size)
        return self._hash.digest()


class _Digested(placing.NodeSource):
    """A node whose bytes are digested as they are read."""

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        self.digest = _SparseDigest()
        for offset, piece in super().pieces():
            self.digest.add(offset, piece)
            yield offset, piece


def _state_of(source: Volume, item: MovedItem) -> placing.State:
    """What a copy is to be: with the times from before it was read, and a directory writable until it is done."""
    state, attr = placing.state_of(source, source.getattr(item.node)), item.attr
    mode = stat.S_IFDIR | 0o700 if attr.is_dir else attr.mode
    return state._replace(mode=mode, uid=attr.uid, gid=attr.gid, atime_ns=attr.atime_ns, mtime_ns=attr.mtime_ns)


def _digest(volume: Volume, node: int) -> bytes:
    digest = _SparseDigest()
    for offset, piece in data_pieces(volume, node):
        digest.add(offset, piece)
    return digest.value()


# -- the copy --------------------------------------------------------------------------------------------------


class _Copy:
    """Where the tree is copied to, under a hidden name until it is complete; a backend with the agent face alone has no
    way to give it another. `add` each item, a directory before what is in it, then `finish`.

    Args:
        volume: of the target.
        seen: the volume with its rules.
        hidden: the name of the top until then; None makes one up.
    """

    def __init__(
        self, target: AgentFace, path: AgentPath, volume: Volume, seen: Volume, hidden: bytes | None = None
    ) -> None:
        self._target = target
        self._path = path
        self.nodes: dict[Names, int] = {}
        """Of what is there."""
        self.twins: dict[bytes | int, Names] = {}
        """A source file with several names → the first name of its copy."""
        self.digests: dict[Names, bytes] = {}
        self._volume, self._calls = volume, _guarded(volume, target)
        self._seen = seen
        self._caller = Caller(os.geteuid(), os.getegid(), os.getpid())
        self._place = resolve(self._calls, path, follow=False)
        made_up = _hidden(self._place.name) if _hides(volume) else self._place.name
        self._name = self.hidden = hidden or made_up
        self._made: list[Change] = []  # directories above it
        self._parent = self._place.parent

    def add(self, source: Volume, item: MovedItem) -> None:
        if not item.names and self._place.missing:
            self._target.guarded("move", self._make_parents)
        parent, name = self._place_of(item.names)
        if item.attr.nlink > 1 and not item.attr.is_dir and self._calls.features.links:
            first = self.twins.setdefault(_twin(source, item), item.names)
            if first != item.names:
                self.nodes[item.names] = self._calls.link(self._node(first), parent, name).node
                return
        found = _Digested(source, item.node, _state_of(source, item))
        placed = placing.make(self._calls, parent, name, found, [], "")
        self.nodes[item.names] = placed.attr.node
        if "mode" in placed.lost:
            raise errors.oserror(errno.EPERM)
        if item.is_file:
            self.digests[item.names] = found.digest.value()
            if found.digest.size != found.state.size:
                raise OSError(errno.EBUSY, CHANGED)

    def _place_of(self, names: Names) -> tuple[int, bytes]:
        return (self._node(names[:-1]), names[-1]) if names else (self._parent, self._name)

    def _node(self, names: Names) -> int:
        top = paths.join(paths.parent_and_name(self._path)[0], paths.to_text(self._name))
        return known(self._calls, self.nodes[names], _below(top, names)).node

    def _make_parents(self) -> None:
        with self._volume.changing() as changes:
            for name, path in zip(self._place.missing, self._place.missing_paths, strict=True):
                node = self._volume.mkdir(self._parent, name, DIRECTORY_MODE, self._caller).node
                self._made.append(Change(node, self._parent, name, "created", path + "/"))
                changes += [Change(node=self._parent), self._made[-1]]
                self._parent = node

    def finish(self, items: list[MovedItem]) -> None:
        for names, digest in self.digests.items():
            if _digest(self._calls, self._node(names)) != digest:
                raise OSError(errno.EIO, "The copy is not what was copied")
        for item in reversed(items):  # a directory after what is in it, for that moves its times
            self._adorn(item, self._node(item.names))
        self._target.guarded("move", partial(self._put_in_place, items))
        self._calls.sync()

    def _put_in_place(self, items: list[MovedItem]) -> None:
        with self._volume.changing() as changes:
            if self._seen is not self._volume and resolve(self._seen, self._path, follow=False).parent != self._parent:
                raise OSError(errno.EBUSY, "Its new place was moved meanwhile")
            if self.hidden != self._place.name:
                self._volume.rename(self._parent, self.hidden, self._parent, self._place.name, RENAME_NOREPLACE)
            self._name = self._place.name
            changes += [Change(node=self._parent), Change(parent=self._parent, name=self._name)]
            for item in items:
                path = AgentPath("/".join([self._place.path, *map(paths.to_text, item.names)]))
                shown = path + "/" if item.attr.is_dir else path
                changes.append(Change(self.nodes[item.names], kind="created", path=shown))

    def _adorn(self, item: MovedItem, node: int) -> None:
        """Give a directory its mode, and everything the times from before it was read."""
        attr, wanted = self._calls.getattr(node), item.attr
        mode = wanted.mode if wanted.is_dir else attr.mode
        if (attr.mode, attr.atime_ns, attr.mtime_ns) != (mode, wanted.atime_ns, wanted.mtime_ns):
            mode_now = stat.S_IMODE(mode) if wanted.is_dir else None
            self._calls.setattr(node, AttrChanges(mode_now, atime_ns=wanted.atime_ns, mtime_ns=wanted.mtime_ns))

    def undo(self) -> None:
        try:
            self._target.guarded("move", self._remove, len(self.nodes) + 1)
        except OSError as error:
            log.warning("%s: a copy of '%s' could not be removed: %s", self._target.name, self._path, error)

    def _remove(self) -> None:
        was_seen = self._name != self.hidden
        left = list(self.nodes)
        for node in self.nodes.values():
            with contextlib.suppress(OSError):  # the mode of its source may let nothing be removed
                if self._volume.getattr(node).is_dir:
                    self._volume.setattr(node, AttrChanges(mode=0o700))
        while left:
            with contextlib.nullcontext() if was_seen else silently(), self._volume.changing() as changes:
                for names in left[: -REMOVED_AT_ONCE - 1 : -1]:
                    parent, name = (self.nodes[names[:-1]], names[-1]) if names else (self._parent, self._name)
                    attr, path = self._volume.lookup(parent, name), _below(self._path, names)
                    placing.remove(self._volume, parent, name, attr, changes, path)
            del left[-REMOVED_AT_ONCE:]
        with self._volume.changing() as changes, contextlib.suppress(OSError):  # it is not empty any more
            for made in reversed(self._made):
                assert made.parent is not None and made.name is not None
                self._volume.rmdir(made.parent, made.name)
                changes += [Change(node=made.parent), made._replace(kind="deleted")]


def _hidden(name: bytes) -> bytes:
    return b"." + name[:200] + b".moving-" + secrets.token_hex(4).encode()


def _beside(path: AgentPath, name: bytes) -> AgentPath:
    return paths.join(paths.parent_and_name(path)[0], paths.to_text(name))


@contextlib.contextmanager
def _noted(note: NoteHidden, names: HiddenNames, volume: Volume, into: Volume) -> Iterator[None]:
    """Have hidden names noted for as long as something has them, or may get them: after a call that was given up, or
    after a kill, which takes a removal back that is not durable."""
    ended = note(names)
    is_over, is_copied = True, False
    try:
        yield
        is_copied = True  # and that is durable
    except OSError as error:
        is_over = not isinstance(error.__cause__, GivenUp)
        raise
    finally:
        if is_over and not _has_any(names, volume, into):
            changed = [volume] if is_copied else [volume, into]
            with contextlib.suppress(OSError):  # the next server looks, and finds nothing
                for each in changed:
                    each.sync()
                ended()


def _has_any(names: HiddenNames, volume: Volume, into: Volume) -> bool:
    try:
        return any(
            path is not None and find(each, path) is not None
            for each, path in ((volume, names.source), (into, names.target))
        )
    except Exception:
        return True  # it does not answer


def remove_hidden(face: AgentFace, path: AgentPath) -> str | None:
    """Remove what a killed move has left under a hidden name. Returns why it is still there.

    Raises:
        OSError: the backend does not answer.
    """
    plain = _without_rules(face, _volume_of_paths(face))
    if find(_guarded(_volume_of_paths(plain), plain), path) is None:
        return None
    return _delete(plain, path, silent=True).error


# -- the source ------------------------------------------------------------------------------------------------


def _set_aside(volume: Volume, place: Place, items: list[MovedItem], ruled: Volume, aside: AgentPath) -> None:
    """Check that the source has not changed since it was copied, and give it its hidden path, in one step.

    Args:
        ruled: the volume with its rules.
    """
    name = paths.to_name(paths.parent_and_name(aside)[1])
    top = items[0]
    with volume.changing() as changes:
        if ruled is not volume:
            ruled.require_removable(place.path)
        if [item.state for item in _tree(volume, volume.lookup(place.parent, place.name))] != [i.state for i in items]:
            raise OSError(errno.EBUSY, CHANGED)
        volume.rename(place.parent, place.name, place.parent, name, RENAME_NOREPLACE)
        path = place.path + "/" if top.attr.is_dir else place.path
        changes += [Change(node=place.parent), Change(top.node, place.parent, place.name, "deleted", path)]


def _require_unchanged(volume: Volume, place: Place, items: list[MovedItem], digests: dict[Names, bytes]) -> None:
    """Its times may say nothing, so look at the bytes again."""
    volume.expire()
    again = list(_tree(volume, volume.lookup(place.parent, place.name)))
    same = [(item.names, item.attr.mode) for item in again] == [(item.names, item.attr.mode) for item in items]
    if not same or any(
        _digest(volume, known(volume, item.node, _below(place.path, item.names)).node) != digests[item.names]
        for item in again
        if item.is_file
    ):
        raise OSError(errno.EBUSY, CHANGED)
