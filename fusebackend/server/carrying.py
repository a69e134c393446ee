"""`Carrying`: a sandbox elsewhere gets the files of a mount's routes before a command, and gives them back after it.

The sandbox has no mount: it has copies, at the routes' own paths. Before and after each command both sides are listed
and compared with their last common state (`_Base`), three ways:

- what one side has changed, made or deleted goes to the other, and with files the directories that they leave empty;
- what both have changed is a conflict: the route's version keeps the name on both sides, the sandbox's is stored in the
  route as `name.conflict-<time>` (SEMANTICS), and the command's answer says so. Of a file that one side has deleted and
  the other changed, the change is kept;
- a file that looks changed and has the bytes it had is not carried, so `touch` costs one transfer and changes nothing.

A sandbox that has been replaced by an empty one has deleted nothing: a mark in it, which a new one has not, tells.

Regular files are carried, with their names and whether they can be executed, and directories as far as files are in
them; links, other modes, owners and times are not. A route that has too much is left out, and so is a file that is too
large, each by name: in `status` and in the answer of the command. So is a route that does not answer. Of commands that
run at once each may see, and give back, what the other has half done.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fusebackend.backends.sandbox.base import BaseSandbox
from fusebackend.backends.sandbox.scripts import Script, entries_of, failure, nonce, status_of
from fusebackend.base import budget, paths
from fusebackend.base.batches import by_size
from fusebackend.base.budget import Spent
from fusebackend.base.errors import FILE_NOT_FOUND, words_of
from fusebackend.base.paths import ROOT, AgentPath, to_name
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import ROOT_NODE, Attr, AttrChanges, Change, FileDownloadResponse, digest_of
from fusebackend.remote.files import conflict_path
from fusebackend.volumes.agent_face import VolumeBackend
from fusebackend.volumes.walk import FileWalk, resolve

if TYPE_CHECKING:
    from fusebackend.composite.backend import CompositeBackend
    from fusebackend.vfs.junctions import Route
    from fusebackend.vfs.mounted_tree import FileSystem

log = logging.getLogger(__name__)

SYSTEM = frozenset({"bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr"})
"""Names of the root that a sandbox can't do without; a route that is one of them is not shown in it."""

KERNELS = frozenset({"proc", "sys", "dev"})
"""Nothing is shown below these either: a container's engine refuses it, or mounts its own there."""

OWN_DIRECTORY = "the sandbox's own directory is there"

MAX_FILES = 5_000
"""Files of one route. With more of them it is left out."""

MAX_BYTES = 64 << 20
"""Bytes of one route."""

MAX_FILE_BYTES = 16 << 20
"""Bytes of one file. A larger one is left out, and the others of its route are not."""

BATCH_BYTES = 16 << 20
"""Carried at a time, so held in memory twice."""

BATCH_FILES = 200

LISTING_BYTES = 16 << 20
"""A longer list of the sandbox's files is not even read: Python's records of it would take some ten times as much."""

LIST_S = 15.0
"""How long the list of one route's files may take."""

ROUNDS = 3
"""How often files are compared anew that change meanwhile; the next command goes on with them."""

SHOWN = 5
"""Notes that the answer of a command carries; the log has all."""


class _File(NamedTuple):
    """A file as a listing has it. `version` is another one when the bytes may be other ones; None says nothing."""

    version: object
    size: int
    executable: bool


@dataclass
class _Base:
    """The last common state of both sides. A version of None is not known: then the bytes tell whether it is still
    that."""

    route: object
    sandbox: object
    digest: bytes


class Carrying:
    """See the module's docstring; a sight (`guest.py`). Safe in threads.

    Args:
        default: the sandbox.
        backend: what is mounted.
        filesystem: its mounted tree.
    """

    how = "carried"

    def __init__(self, default: BaseSandbox, backend: CompositeBackend, filesystem: FileSystem) -> None:
        self._default = default
        self._face = AgentFace(default, "The sandbox")
        self._backend = backend
        self._tree = filesystem.tree
        self._routes = {route.prefix: route for route in filesystem.tree.routes if route.prefix != ROOT}
        self._base: dict[AgentPath, _Base] = {}
        self._mark = default.path_of(AgentPath(f"/.fusebackend-{nonce()}~"))
        self._begun = False
        self._lock = threading.Lock()
        self._never = {prefix: OWN_DIRECTORY for prefix in self._routes if is_systems(default.path_of(prefix))}
        tops = [prefix for prefix in self._routes if self._prefix(paths.parent_and_name(prefix)[0]) == ROOT]
        self._tops = [top for top in tops if top not in self._never]
        self.unseen: dict[AgentPath, str] = dict(self._never)

    def start(self) -> list[str]:
        self._default.leave_out(self._tops)
        return []

    def after(self) -> list[str]:
        try:
            return self.before(lambda: False)
        except OSError as error:
            log.warning("what a command has changed could not be carried back: %s", error)
            return [f"the routes' files are not carried back yet: {error.strerror or error}"]

    def close(self) -> None:
        self._default.leave_out([])
        if self._begun:
            self._begun = False
            with contextlib.suppress(OSError):  # it may be gone
                self._default.ask(Script().call("rm -rf", self._mark), 5.0)

    def _prefix(self, path: AgentPath) -> AgentPath:
        """The prefix of the route that a path belongs to."""
        return self._tree.route_of(path).prefix

    # -- one round ---------------------------------------------------------------------------------------------

    def before(self, stopped: Callable[[], bool]) -> list[str]:
        """Make both sides equal. Returns what the user should know. OSError: the sandbox does not answer."""
        with self._lock:
            notes: list[str] = []
            for _ in range(ROUNDS):
                round_ = _Round(self._base, stopped)
                self._list(round_)
                for batch in round_.batches():
                    self._settle(round_, batch)
                if round_.sent:
                    self._note_versions(round_)
                self.unseen = round_.left_out
                notes += [note for note in round_.notes if note not in notes]
                if not round_.overtaken or stopped():
                    break
            if round_.overtaken:
                notes.append("some files change while they are carried; the next command goes on with them")
            for note in notes:
                log.warning("%s", note)
            left_out = [
                f"{prefix}/ is not carried: {why}"
                for prefix, why in round_.left_out.items()
                if prefix not in self._never
            ]
            more = len(notes) - SHOWN
            return left_out + notes[:SHOWN] + ([f"and {more} more, see the log"] if more > 0 else [])

    def _list(self, round_: _Round) -> None:
        round_.left_out |= self._never
        found = self._list_sandbox(round_)
        withdrawn = set()
        for prefix, route in self._routes.items():
            if prefix in round_.left_out:
                continue
            try:
                round_.routes |= route.executor.run("carry", partial(self._list_route, route))
            except (OSError, Spent) as error:
                words = "its files take too long to list" if isinstance(error, Spent) else error.strerror
                round_.left_out[prefix] = words or str(error)
                withdrawn.add(prefix)
        for prefix, entries in found.items():
            if prefix not in round_.left_out:
                round_.sandbox |= entries
        self._withdraw(round_, {path for path in self._base if self._prefix(path) in withdrawn}, found)
        round_.paused = {path for path in self._base if self._prefix(path) in round_.left_out}
        for path in [*round_.routes, *round_.sandbox]:
            size = max(files[path].size for files in (round_.routes, round_.sandbox) if path in files)
            if size > MAX_FILE_BYTES and path not in round_.passed_over:
                round_.passed_over.add(path)
                round_.notes.append(f"{path} is not carried: {size} bytes, more than {MAX_FILE_BYTES}")

    def _list_route(self, route: Route) -> dict[AgentPath, _File]:
        found: dict[AgentPath, _File] = {}
        size = 0
        with budget.limited(LIST_S):
            walk = FileWalk(route.volume, ROOT_NODE, is_brief=False)
            for relative, attr in walk:
                path = AgentPath(f"{route.prefix}/{relative}")
                if self._prefix(path) != route.prefix:
                    continue  # a nested route covers it
                found[path] = _file_of(attr)
                size += attr.size if attr.size <= MAX_FILE_BYTES else 0
                _require_room(len(found), size)
        if walk.unreadable:
            raise OSError(errno.EACCES, "not all of it can be read")
        return found

    def _list_sandbox(self, round_: _Round) -> dict[AgentPath, dict[AgentPath, _File]]:
        """The files of the sandbox by their routes. Where a route's can't be listed, the round leaves it out."""
        mark, there = nonce(), [self._default.path_of(top) for top in self._tops]
        script = Script().call("fb_arrived", self._mark).call("mkdir -p", self._mark)
        places = [self._default.path_of(prefix) for prefix in self._routes if prefix not in self._never]
        script.call("mkdir -p", *places)
        for path in there:
            script.call("printf", f"\\n{mark}\\n").call("fb_find", "", path)
        answer = self._default.ask(script, self._default.script_timeout_s, looks=True)
        first, *listings = answer.split(f"\n{mark}\n".encode())
        if status_of(first)[0] != "ok":
            self._base.clear()  # a sandbox that was never here
        self._begun = True
        if len(listings) != len(self._tops):
            raise OSError(errno.EIO, "The sandbox gave no answer")
        found: dict[AgentPath, dict[AgentPath, _File]] = {prefix: {} for prefix in self._routes}
        for top, listing in zip(self._tops, listings, strict=True):
            status, entries = status_of(listing)
            files, why = None, f"in the sandbox, it has far more than {MAX_FILES} files"
            if len(entries) <= LISTING_BYTES:
                files = entries_of(entries)
                why = "not all of it can be read there" if status == "ok" else _why(status)
            if files is None or status != "ok" or not files.ended or files.unreadable:
                round_.left_out |= {prefix: why for prefix in self._routes if paths.is_below(prefix, top)}
                continue
            for entry in files.entries:
                path = paths.join(top, paths.to_text(entry.path))
                version = (entry.size, entry.mtime_ns)
                found[self._prefix(path)][path] = _File(version, entry.size, bool(entry.mode & 0o100))
        for prefix, files_of_route in found.items():
            try:
                size = sum(file.size for file in files_of_route.values() if file.size <= MAX_FILE_BYTES)
                _require_room(len(files_of_route), size)
            except OSError as error:
                round_.left_out.setdefault(prefix, f"in the sandbox, {error.strerror}")
        return found

    def _withdraw(
        self, round_: _Round, known: set[AgentPath], found: Mapping[AgentPath, Mapping[AgentPath, _File]]
    ) -> None:
        """A route is left out that was carried before: remove its copies, or a command would read stale ones."""
        gone = []
        for path in known:
            file = found[self._prefix(path)].get(path)
            if file is not None and file.version == self._base[path].sandbox:
                gone.append(path)
            elif file is not None:
                round_.notes.append(f"{path} was changed in the sandbox, and stays there alone")
            del self._base[path]
        self._run_there("rm -f", gone)

    # -- one batch ---------------------------------------------------------------------------------------------

    def _settle(self, round_: _Round, batch: list[AgentPath]) -> None:
        ours = round_.fetch(batch, True, self._backend.download_files)
        theirs = round_.fetch(batch, False, self._face.download_files)
        to_sandbox: dict[AgentPath, bytes | None] = {}
        to_route: dict[AgentPath, bytes | None] = {}
        for path in batch:
            if path in round_.passed_over:
                continue
            digest = self._base[path].digest if path in self._base else None
            mine, his = ours.get(path), theirs.get(path)
            i_changed = round_.looks_changed(path, True) and (mine is None or digest_of(mine) != digest)
            he_changed = round_.looks_changed(path, False) and (his is None or digest_of(his) != digest)
            if i_changed and he_changed and mine is not None and his is not None and mine != his:
                self._keep_both(round_, path, his)
            if i_changed and he_changed and mine == his:
                self._agree(round_, path, None if mine is None else digest_of(mine))
            elif i_changed and (mine is not None or not he_changed):  # what both have changed is kept by one at least
                to_sandbox[path] = mine
            elif he_changed:
                to_route[path] = his
            else:
                self._agree(round_, path, digest)
        self._send(round_, to_sandbox)
        self._store(round_, to_route)

    def _agree(self, round_: _Round, path: AgentPath, digest: bytes | None) -> None:
        """Both sides have the same."""
        if digest is None:
            self._base.pop(path, None)
            return
        self._base[path] = _Base(round_.routes[path].version, round_.sandbox[path].version, digest)

    def _keep_both(self, round_: _Round, path: AgentPath, theirs: bytes) -> None:
        beside = conflict_path(path)
        (response,) = self._backend.upload_files([(beside, theirs)])
        if response.error is not None:
            raise OSError(errno.EIO, f"The sandbox's version of {path} can't be kept: {words_of(response.error)}")
        round_.notes.append(f"{path} was changed on both sides; the sandbox's version is {beside}")

    # -- to the sandbox ----------------------------------------------------------------------------------------

    def _send(self, round_: _Round, files: Mapping[AgentPath, bytes | None]) -> None:
        gone = [path for path, data in files.items() if data is None]
        self._run_there("rm -f", gone)
        for path in gone:
            self._base.pop(path, None)
        self._prune_there(gone)
        wanted = [(path, data) for path, data in files.items() if data is not None]
        if not wanted:
            return
        parents = sorted({paths.parent_and_name(path)[0] for path, _ in wanted})
        self._run_there("mkdir -p", parents)
        for (path, data), response in zip(wanted, self._face.upload_files(wanted), strict=True):
            if response.error is not None:
                round_.notes.append(f"{path} is not carried to the sandbox: {words_of(response.error)}")
                continue
            round_.sent.add(path)
            self._base[path] = _Base(round_.routes[path].version, None, digest_of(data))
        sent = [(path, round_.routes[path].executable) for path, _ in wanted if path in round_.sent]
        for executable, word in ((True, "chmod +x"), (False, "chmod -x")):
            others = (path for path, runs in sent if runs == executable != round_.was_executable(path))
            self._run_there(word, list(others))

    def _run_there(self, words: str, wanted: list[AgentPath]) -> None:
        # In pieces that a command line can hold.
        for some in by_size(wanted, lambda path: 4 * len(to_name(path)), BATCH_FILES, 32 << 10):
            self._default.ask(Script().call(words, *map(self._default.path_of, some)), self._default.script_timeout_s)

    def _note_versions(self, round_: _Round) -> None:
        """Return the sandbox's versions of the files that were just sent."""
        listed = _Round(self._base, round_.stopped)
        for entries in self._list_sandbox(listed).values():
            for path in round_.sent & entries.keys():
                if path in self._base:
                    self._base[path].sandbox = entries[path].version

    # -- to the routes -----------------------------------------------------------------------------------------

    def _store(self, round_: _Round, files: Mapping[AgentPath, bytes | None]) -> None:
        gone: list[AgentPath] = []
        for path, data in files.items():
            attr = self._look(path)
            now = None if attr is None else _file_of(attr)
            before = round_.routes.get(path)
            if (now is None) != (before is None) or (now and now.version) != (before and before.version):
                round_.overtaken = True  # it has changed since it was listed
            elif data is None:
                error = self._backend.delete(path).error
                if error is None:
                    self._base.pop(path, None)
                    gone.append(path)
                else:
                    round_.notes.append(f"{path} is deleted in the sandbox alone: {error}")
            else:
                (response,) = self._backend.upload_files([(path, data)])
                if response.error is not None:
                    round_.notes.append(f"{path} is not carried back: {words_of(response.error)}")
                    continue
                self._base[path] = _Base(None, round_.sandbox[path].version, digest_of(data))
                if round_.sandbox[path].executable != (before is not None and before.executable):
                    self._set_executable(path, round_.sandbox[path].executable)
        self._prune_routes(gone)

    def _look(self, path: AgentPath) -> Attr | None:
        """What a route has at a path now."""
        route = self._tree.route_of(path)
        with contextlib.suppress(NotADirectoryError):
            return route.executor.run("carry", lambda: resolve(route.volume, route.inner(path), follow=False).attr)
        return None

    def _set_executable(self, path: AgentPath, executable: bool) -> None:
        route = self._tree.route_of(path)
        if not route.volume.features.persistent_modes:
            return

        def change() -> None:
            with route.volume.changing() as changes:
                attr = resolve(route.volume, route.inner(path), follow=False).found
                readable = stat.S_IMODE(attr.mode) & 0o444
                mode = stat.S_IMODE(attr.mode) & ~0o111 | (readable >> 2 if executable else 0)
                route.volume.setattr(attr.node, AttrChanges(mode=mode))
                changes.append(Change(node=attr.node, kind="attributes", path=route.inner(path)))

        with contextlib.suppress(FileNotFoundError):
            route.executor.run("carry", change)

    # -- directories that have become empty --------------------------------------------------------------------

    def _prune_there(self, gone: list[AgentPath]) -> None:
        """Remove the directories of the sandbox that files were deleted from, where the route has none."""
        script = Script()
        for directory in self._above(gone):
            if self._look(directory) is None:
                script.call("rmdir", self._default.path_of(directory))
        if script.text:
            self._default.ask(script, self._default.script_timeout_s)

    def _prune_routes(self, gone: list[AgentPath]) -> None:
        """The same for routes."""
        above = self._above(gone)
        if not above:
            return
        script = Script().call("fb_arrived", *map(self._default.path_of, above))
        there = self._default.statuses(script)
        for directory, status in zip(above, there, strict=True):
            if status != "ok":
                route = self._tree.route_of(directory)
                with contextlib.suppress(OSError):  # it is gone, or not empty
                    face = VolumeBackend(route.volume)
                    route.executor.run("carry", partial(face.remove_directory, route.inner(directory)))

    def _above(self, gone: list[AgentPath]) -> list[AgentPath]:
        """The directories on the way to these files, but for the routes' roots, each before its parent."""
        found = set()
        for path in gone:
            directory = paths.parent_and_name(path)[0]
            while directory not in self._routes:
                found.add(directory)
                directory = paths.parent_and_name(directory)[0]
        return sorted(found, key=len, reverse=True)


class _Round:
    """One comparison of both sides."""

    def __init__(self, base: Mapping[AgentPath, _Base], stopped: Callable[[], bool]) -> None:
        self.stopped = stopped
        self.routes: dict[AgentPath, _File] = {}
        self.sandbox: dict[AgentPath, _File] = {}
        self.left_out: dict[AgentPath, str] = {}
        self.passed_over: set[AgentPath] = set()
        self.paused: set[AgentPath] = set()  # of routes that are left out for now, and can't be looked at
        self.notes: list[str] = []
        self.sent: set[AgentPath] = set()
        self.overtaken = False
        self._base = base

    def looks_changed(self, path: AgentPath, in_route: bool) -> bool:
        """Since both sides had the same, as far as a listing tells."""
        file = (self.routes if in_route else self.sandbox).get(path)
        base = self._base.get(path)
        if base is None or file is None:
            return base is not None or file is not None
        return file.version is None or file.version != (base.route if in_route else base.sandbox)

    def fetch(
        self, batch: list[AgentPath], in_route: bool, download: Callable[[list[Any]], list[FileDownloadResponse]]
    ) -> dict[AgentPath, bytes]:
        """Return the bytes of files that look changed. A file that can't be fetched is passed over in this round."""
        listed = self.routes if in_route else self.sandbox
        wanted = [path for path in batch if path in listed and self.looks_changed(path, in_route)]
        wanted = [path for path in wanted if path not in self.passed_over]
        found: dict[AgentPath, bytes] = {}
        for path, response in zip(wanted, download(list(wanted)) if wanted else [], strict=True):
            if response.error is None and response.content is not None:
                found[path] = response.content
                continue
            self.passed_over.add(path)
            if response.error == FILE_NOT_FOUND:
                self.overtaken = True
            else:
                self.notes.append(f"{path} is not carried: {words_of(response.error or 'no content')}")
        return found

    def was_executable(self, path: AgentPath) -> bool:
        """Return True if there was a file in the sandbox that can be executed."""
        return path in self.sandbox and self.sandbox[path].executable

    def batches(self) -> Iterator[list[AgentPath]]:
        """Yield files that look changed on either side, in pieces that fit into memory. Ends early when the caller is
        stopped."""
        changed = (
            path
            for path in sorted({*self.routes, *self.sandbox, *self._base})
            if path not in self.passed_over and path not in self.paused
            if self.looks_changed(path, True) or self.looks_changed(path, False)
        )
        for batch in by_size(changed, self._size, BATCH_FILES, BATCH_BYTES):
            if self.stopped():
                return
            yield batch

    def _size(self, path: AgentPath) -> int:
        return max(files[path].size if path in files else 0 for files in (self.routes, self.sandbox))


def _file_of(attr: Attr) -> _File:
    # Without a time nothing says that a file is unchanged.
    return _File(attr.fingerprint if attr.mtime_ns else None, attr.size, bool(attr.mode & 0o100))


def _why(status: str) -> str:
    try:
        return f"the sandbox has no such directory, and it can't be made: {failure(status).strerror}"
    except KeyError:
        return "the sandbox gave no answer"


def _require_room(files: int, size: int) -> None:
    if files > MAX_FILES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILES} files")
    if size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"its files have more than {MAX_BYTES >> 20} MiB")


def is_systems(path: str) -> bool:
    """Return True if a sandbox needs its own directory at this path."""
    top, _, below = path.removeprefix("/").partition("/")
    return top in KERNELS or (top in SYSTEM and not below)
