"""`MountHistory`: the calls of a mount, as the verbs of a mount show them and take them back.

The history keeps paths of routes and numbers (`history/`); verbs speak of paths of the mount and of names, `c42`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from fusebackend.base import paths
from fusebackend.base.errors import oserror
from fusebackend.base.git_patch import quoted
from fusebackend.base.lines import split_lines
from fusebackend.base.merge_lines import is_binary
from fusebackend.base.paths import ROOT, AgentPath, mount_path, to_name, to_text
from fusebackend.history.blame import Place, blame, lineage
from fusebackend.history.calls import OpenCall
from fusebackend.history.history_file import Filter
from fusebackend.history.recorder import Recorder
from fusebackend.history.records import Call, Record, call_number, is_call_name
from fusebackend.history.undo import Undo
from fusebackend.protocol import (
    Actor,
    BlamedLine,
    BlameResult,
    CallInfo,
    ChangeInfo,
    UndoResult,
    Volume,
)
from fusebackend.protocol.records import FILE_TYPES
from fusebackend.protocol.served import NOT_HELD, DiffForm
from fusebackend.trees import diff_output
from fusebackend.trees.branch_volume import BranchVolume
from fusebackend.trees.diff import Differences, differences
from fusebackend.trees.earlier import EarlierVolume, PastMoment, sides
from fusebackend.trees.lower_tree import BaseTree
from fusebackend.trees.refs import Ref, begin_ns
from fusebackend.volumes.placing import NodeSource, Source, whole
from fusebackend.volumes.walk import resolve

MAX_LISTED = 10_000
"""Calls or changes in one answer, at most: some 4 MiB."""

BLAMED_BYTES = 2 << 20
"""Larger files are not compared by lines."""


class MountHistory:
    """See the module's docstring. Any thread; each method waits for the history's file.

    Args:
        recorder: of the mount.
        volumes: of the routes, by prefix.
    """

    def __init__(self, recorder: Recorder, volumes: Mapping[AgentPath, Volume]) -> None:
        self._recorder = recorder
        self._file = recorder.history
        self._volumes = volumes
        """Those of the main tree."""
        self._undo = Undo(recorder)

    @property
    def read(self) -> Collection[str]:
        """The names of the snapshots that an undo reads now."""
        return self._undo.read

    # -- looking -----------------------------------------------------------------------------------------------

    def log(
        self,
        calls: Sequence[str],
        by: str | None,
        since: int | str | None,
        named: Sequence[str],
        before: str | None,
        ended_after_ns: int | None,
        limit: int,
    ) -> list[CallInfo]:
        """Return calls that changed something, the newest first; or those of `calls`, in that order."""
        if calls:
            return [call_info(self.call(each)) for each in calls]
        wanted = Filter(
            by=by or "",
            since_ns=begin_ns(since) if isinstance(since, str) else since,
            paths=tuple(paths.normalise(path) for path in named),
            before=None if before is None else call_number(before),
            ended_after_ns=ended_after_ns,
            with_requests=True,
        )
        return [call_info(each) for each in self._file.calls(_bounded(limit), wanted)]

    def call(self, name: str) -> Call:
        """Return a call by its name.

        Raises:
            ValueError: it is no name of a call.
            OSError: ENOENT, there is none of that name.
        """
        found = self._file.call(call_number(name))
        if found is None:
            raise OSError(errno.ENOENT, f"there is no call '{name}' ('fusebackend log' lists those of the last 24 h)")
        return found

    def branch_of(self, name: str) -> str | None:
        """Return the branch whose state is meant by the one before a call; None for that of the mount.

        Raises:
            ValueError, OSError: as `call`; ENOTSUP, the call has changed several branches, and nothing else.
        """
        beside = self._recorder.beside
        if not beside:
            return None
        changed = self._file.changed_routes(self.call(name).number)
        if not changed or changed - beside.keys():
            return None
        names = sorted(paths.split(prefix)[-1].decode("utf-8", "surrogateescape") for prefix in changed)
        if len(names) > 1:
            text = f"{name} has changed the branches {', '.join(names)} and nothing else, so no one state is before it"
            raise OSError(errno.ENOTSUP, f"{text}; 'fusebackend undo {name}' takes it back")
        return names[0]

    def changes(self, call: str | None, after: int, limit: int, branch: AgentPath | None = None) -> list[ChangeInfo]:
        """Return the changes of a call, or of all, after the one of this number.

        Args:
            branch: where a branch is: those in it, with its paths.
        """
        if call is None:
            return [change_info(each, branch) for each in self._file.records_after(after, _bounded(limit), branch)]
        records = self._file.records(self.call(call).number)
        if branch is not None:
            records = [each for each in records if each.prefix == branch]
            if not records:
                text = f"call '{call}' has changed nothing in the branch ('fusebackend log --branch' lists its calls)"
                raise OSError(errno.ENOENT, text)
        later = records[after:] if after < 0 else [each for each in records if each.number > after]
        return [change_info(each, branch) for each in later[: _bounded(limit)]]

    def diff(self, call: str, given: Sequence[str]) -> Differences:
        """Return what a call did.

        Raises:
            ValueError: it is no name of a call, or a path is malformed.
            OSError: ENOENT, there is no such call, or it has not changed one of the paths.
        """
        found = self.call(call)
        before, after = sides(self._file, self._file.records(found.number), self._recorder.volumes, self._source)
        inner = [os.fsencode(paths.normalise(each)).strip(b"/") for each in given] or [b""]
        try:
            result = differences(before, after, inner)
        except FileNotFoundError as error:
            raise OSError(errno.ENOENT, f"{call} has not changed '/{error.filename}'") from None
        result.emptied.clear()  # the trees have only what the call changed
        return result

    def before(self, ref: Ref, given: Sequence[bytes]) -> dict[AgentPath, EarlierVolume]:
        """Return the routes as they were before a call or at a time, by prefix. Before a call that has changed a branch
        alone, it is the whole branch, as if it was the only route.

        Args:
            given: paths of the mount, without a slash at the begin: only there.

        Raises:
            ValueError, OSError: as `call`; ENODATA, the history lacks changes since then.
        """
        if ref.is_call:
            call = self.call(ref.name)
            moment = PastMoment(f"before {call.ref}", call.began_ns, self._file.begin(call))
        else:
            assert ref.time_ns is not None, "the present needs no history"
            moment = PastMoment(f"at '{ref.name}'", ref.time_ns, self._file.begin_at(ref.time_ns, ref.name))
        if ref.is_call and (branch := self.branch_of(ref.name)) is not None:
            prefix = next(each for each in self._recorder.beside if paths.split(each)[-1] == to_name(branch))
            inner = [b"/" + path for path in given]
            volume = self._recorder.beside[prefix]
            return {ROOT: EarlierVolume(self._file, moment, [prefix], volume, inner, self._source)}
        found = {}
        for prefix, volume in self._volumes.items():
            prefixes = [prefix, *(each for each in self._volumes if each != prefix and self._volumes[each] is volume)]
            inner = [path for each in given if (path := _inside(prefix, AgentPath("/" + to_text(each)))) is not None]
            found[prefix] = EarlierVolume(self._file, moment, prefixes, volume, inner, self._source)
        return found

    def blame(self, path: str) -> BlameResult:
        """Return which calls left a file as it is; the file itself, not the target of a link.

        Raises:
            ValueError: the path is malformed.
            OSError: ENOENT, EISDIR, EINVAL, it is no regular file; or an error of the volume.
        """
        outer = paths.normalise(path)
        volumes = self._recorder.volumes
        prefix, inner = paths.in_route(outer, volumes)
        volume = volumes[prefix]
        found = resolve(volume, inner, follow=False).found
        if not stat.S_ISREG(found.mode):
            raise oserror(errno.EISDIR if found.is_dir else errno.EINVAL)
        steps, is_new = lineage(self._file, prefix, to_name(inner), before=partial(self._before_branch, volume))
        calls: dict[int, Call | None] = {}

        def call(number: int) -> Call | None:
            if number not in calls:
                calls[number] = self._file.call(number)
            return calls[number]

        result = BlameResult(str(outer), f"c{steps[0].record.call}" if steps else None)
        named = {steps[0].record.call} if steps else set()
        data = _bytes(NodeSource(volume, found.node))
        if data is not None and not is_binary(data):
            now = split_lines(data, with_ends=True)
            origins = blame(steps, is_new, now, (found.size, found.mtime_ns), self._lines, call)
            result.lines = [
                BlamedLine(
                    line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace"),
                    [f"c{number}" for number in sorted(origin.calls, reverse=True)],
                    origin.others,
                )
                for line, origin in zip(now, origins, strict=True)
            ]
            named.update(number for origin in origins for number in origin.calls)
        result.calls = {f"c{each}": call_info(made) for each in sorted(named) if (made := call(each)) is not None}
        return result

    def _before_branch(self, volume: Volume, path: bytes, below: int) -> Place | None:
        """Return where a file of a branch was in the mount when the branch was made, see `lineage`. None for one whose
        state before is not a snapshot's or the present, or that is of no branch."""
        if not isinstance(volume, BranchVolume) or isinstance(volume.lower, BaseTree):
            return None
        by_prefix = {each.prefix: each for each in volume.routes}
        prefix, inner = paths.in_route(AgentPath(to_text(path)), by_prefix)
        route = by_prefix[prefix]
        # A live file is as it is now, until the branch changes it.
        return Place(prefix, to_name(inner), below if route.snapshot is None else self._file.end_at(route.time_ns))

    def _lines(self, record: Record) -> list[bytes] | None:
        """Return the lines of a file before a record; None if they are lost."""
        try:
            data = _bytes(self._source(record))
        except OSError:
            return None
        return None if data is None else split_lines(data, with_ends=True)

    def _source(self, record: Record) -> Source:
        """Return the bytes of a record's image. Raises OSError."""
        volume = self._recorder.volumes.get(record.prefix)
        if volume is None:
            raise OSError(errno.EIO, f"the mount has no route '{record.prefix}' any more")
        source = self._recorder.images.source(self._file, volume, record)
        if source is None:
            raise OSError(errno.EIO, "they have been deleted")
        return source

    # -- taking back -------------------------------------------------------------------------------------------

    def undo(
        self,
        calls: Sequence[str],
        by: str | None,
        thread: str | None,
        since: int | str | None,
        inside: AgentPath | None = None,
        *,
        keep_newer: bool,
        merge_lines: bool,
        dry_run: bool,
    ) -> UndoResult:
        """Take calls back; without `calls`, those in the branch of the prefix `inside`, or in the mount: all of a
        thread or since a point, else the newest."""
        numbers = [call_number(each) for each in dict.fromkeys(calls)]
        wanted = Filter(by=by or "", thread=thread or "", paths=() if inside is None else (inside,))
        if isinstance(since, str) and is_call_name(since):
            wanted = wanted._replace(first=self.call(since).number)
        elif since is not None:
            wanted = wanted._replace(since_ns=begin_ns(since) if isinstance(since, str) else since)
        return self._undo.undo(
            numbers,
            wanted=wanted,
            every=thread is not None or since is not None,
            keep_newer=keep_newer,
            merge_lines=merge_lines,
            dry_run=dry_run,
        )

    # -- calls that clients name -------------------------------------------------------------------------------

    def begin_call(self, title: str, pid: int, actor: Actor) -> str:
        """Have what a process and its descendants change belong to one call; returns the id for `end_call`."""
        name = actor.call or uuid.uuid4().hex
        self._recorder.calls.name(pid, title, actor, name)
        return name

    def end_call(self, name: str) -> str | None:
        """End a call; returns its name in the log, None if it has changed nothing, or if none goes on."""
        calls = self._recorder.calls
        call = calls.named(name)
        if call is None:
            return None
        calls.end(call)
        return f"c{call.number}" if call.number else None

    # -- space -------------------------------------------------------------------------------------------------

    @property
    def image_bytes(self) -> int:
        return self._recorder.images.size_bytes

    @property
    def log_bytes(self) -> int:
        return max(0, self._file.size_bytes - self._file.image_bytes)

    def forgettable(self) -> list[int]:
        """Return the numbers of the calls that can be deleted: all but commands that go on."""
        return [*self._file.oldest(-1), *(call.number for call in self._interruptible())]

    def _interruptible(self) -> list[OpenCall]:
        return [call for call in self._recorder.calls.open() if call.kind != "command"]

    def forget(self, calls: Sequence[int]) -> None:
        """Delete calls with their records and the bytes that these alone need; those that go on end first.

        Raises:
            OSError: the history can't be written, as on a full disk.
        """
        for call in self._interruptible():
            if call.number in calls:
                self._recorder.calls.end(call)
        below = self._recorder.images.next_number()
        self._file.forget(calls)
        self._file.require()  # else nothing is deleted yet
        self._recorder.images.clean(self._file, below)


def _inside(prefix: AgentPath, path: AgentPath) -> bytes | None:
    """Return the path inside a route: `/` for a path above it, None for one that is elsewhere."""
    if paths.is_below(prefix, path):
        return b"/"
    if not paths.is_below(path, prefix):
        return None
    return to_name(path if prefix == ROOT else path[len(prefix) :])


def _bytes(source: Source) -> bytes | None:
    """Return the bytes of a file; None if they are too many for a comparison."""
    return None if source.state.size > BLAMED_BYTES else whole(source)


def _bounded(limit: int) -> int:
    return min(max(limit, 0), MAX_LISTED)


def said(
    result: Differences, form: DiffForm, columns: int, on_skipped: Callable[[str, str], None] | None
) -> Iterator[bytes]:
    """Return differences as text, in pieces of whole lines.

    Args:
        on_skipped: is told each path that was not compared, with the reason, and each route. Without it the text has
            routes, too, and all forms have them.
    """
    missing = [(route, NOT_HELD) for route in result.missing]
    if on_skipped is None:
        result.skipped += [(os.fsencode(route.strip("/")), why) for route, why in missing]
    else:
        for place, why in [*((f"/{os.fsdecode(path)}", why) for path, why in result.skipped), *missing]:
            on_skipped(place, why)
    if form == "patch":
        yield from diff_output.patch(result)
    elif form == "json":
        for value in diff_output.as_objects(result):
            yield json.dumps(value).encode("ascii") + b"\n"
    else:
        if form == "names":
            lines = diff_output.name_status(result)
        else:
            lines = diff_output.stat_lines(list(diff_output.stat_rows(result)), columns)
        for line in lines:
            yield line.encode() + b"\n"
        for path, reason in () if on_skipped is not None else result.skipped:
            yield f"# {quoted(path or b'.')}: not compared: {reason}\n".encode()


def call_info(call: Call) -> CallInfo:
    """Return a call as the verbs have it."""
    undone_by = None if call.undone_by is None else f"c{call.undone_by}"
    undoes = [f"c{number}" for number in call.undoes]
    return CallInfo(
        call.ref, call.kind, call.title, call.actor, call.began_ns, call.ended_ns, call.changes, undoes, undone_by
    )


def change_info(record: Record, route: AgentPath | None = None) -> ChangeInfo:
    """Return a record as the verbs have it, with paths of the mount, or inside its `route`."""
    before, image, prefix = record.before, record.image, record.prefix if route is None else ROOT
    return ChangeInfo(
        record.number,
        f"c{record.call}",
        record.time_ns,
        record.kind,
        mount_path(prefix, record.path),
        mount_path(prefix, record.to_path) if record.to_path else None,
        None if before is None else FILE_TYPES.get(before.mode & ~0o7777, "file"),
        None if before is None else before.size,
        None if image is None else image.place,
        image.name if image is not None and image.place == "lost" else None,
    )
