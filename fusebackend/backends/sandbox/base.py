"""`BaseSandbox`: every file verb, made from `execute` and a way to transfer bytes.

    class MySandbox(BaseSandbox):
        @property
        def id(self): ...
        def execute(self, command, *, timeout=None): ...
        def send(self, files): ...      # bytes to paths of the sandbox where nothing is; OSError
        def fetch(self, path): ...      # the bytes of a regular file; OSError

Then a small file is a part of the command that puts it in its place. Others are sent beside their places first, and put
there by one command, so that each file is the old one or the new one, whole, and each item of a batch has its own
outcome. A sandbox that has transfers of its own gives these instead of the last two:

        def upload_files(self, files): ...        # absolute paths of the sandbox; parents are there
        def download_files(self, paths): ...

They are written for the sandbox's own paths, `root` included, as commands are. Their callers name paths below `root`,
as for every verb: `_at_root` is where the one becomes the other.

The sandbox needs a POSIX `sh` and the usual tools, GNU's or busybox's (`scripts.py` names them), and no Python. A verb
is one command, where a file is small; larger ones are transferred.

- What a verb answers, it answers as every other backend of this package. Paths may be any bytes; names and patterns
  are never code. Symbolic links are followed as the sandbox's kernel does it; nothing but regular files is read.
- `write`, `edit` and uploads put the whole of a file in its place at once (`mv`), with the mode and the owner that the
  old one had; it is another file then, also for processes that had it open, and other hard links keep the old contents.
  Where something is mounted on a file, or only the file may be written, it is overwritten instead.
- `write` creates only; of two that create one file, one gets an error. So does the second of two `edit`s of the same
  contents: the comparison and the change are one step, among all users of this class on that sandbox.
- `grep` and `glob` from above leave out `/proc`, `/sys` and `/dev`.
- A directory named `.fusebackend-lock~` or a file `.fusebackend-…~` is there for the time of a change. They are not
  listed; one that a killed change has left is not in the way.
"""

from __future__ import annotations

import abc
import base64
import binascii
import contextlib
import errno
import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, TypeAlias

from fusebackend import text
from fusebackend.backends.sandbox.scripts import (
    END,
    ERRNO,
    LIBRARY,
    SETTINGS,
    Entry,
    Found,
    Piece,
    Script,
    entries_of,
    failure,
    info_of,
    nonce,
    pieces_of,
    status_of,
)
from fusebackend.base import budget, errors, paths
from fusebackend.base.batches import by_size
from fusebackend.base.budget import Spent
from fusebackend.base.errors import VANISHED, code_of, oserror
from fusebackend.base.globs import Matcher
from fusebackend.base.lines import split_lines
from fusebackend.base.paths import AgentPath, PathError
from fusebackend.linux.command import TIMED_OUT
from fusebackend.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    OnExists,
    Refusal,
    SandboxBackendProtocol,
    Verb,
    not_bytes,
    verbs,
)
from fusebackend.remote.agent_verbs import FileVerbs, Loaded, checked
from fusebackend.remote.keyed import is_name
from fusebackend.volumes.search import Lines, Search, Unreadable

PATH_MAX_BYTES = 4095
"""Longest path that a command can name."""

ATTEMPTS = 5
"""How often a file that changes while it is read is read again."""

BATCH_FILES = 200
"""Files that are read with one command."""

PATHS_BYTES = 32 << 10
"""Paths in one command line."""

_PATTERN = frozenset("*?[\\\n")

INLINE_FILES = 8
"""More files than this are sent: each of them costs a command two processes more, and sending costs a request."""

PLACED_FILES = 500
"""Files that are put in their places by one command, which holds their paths."""

SHOWN = 200
"""How much of an answer that is none is shown."""

PLACED_BYTES = 64 << 20
"""Bytes that are sent at a time, more only in one file."""

Batch: TypeAlias = Sequence[tuple[str, bytes]]
"""Paths of the sandbox, with the bytes that they are to have."""


class BaseSandbox(FileVerbs, SandboxBackendProtocol):
    """See the module's docstring.

    Args:
        root: the directory of the sandbox that is `/` for the file verbs. It confines nothing: links lead out of it,
            and commands go where they like.
        on_exists: how `write` treats an existing file, `"error"` (the seeds) or `"replace"` (deepagents 0.7).

    Attributes:
        inline_bytes: bytes of files that a command can carry. A command line may have 128 KiB.
        answer_bytes: bytes of a file that an answer can carry.
        script_timeout_s: seconds for the command of one verb that is no search.
        max_search_bytes: larger files are passed over by `grep`, and its answer says `truncated`.
    """

    inline_bytes: int = 48 << 10
    answer_bytes: int = 48 << 10
    script_timeout_s: float = 25.0
    max_search_bytes: int = 64 << 20

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for verb in (verbs.UPLOAD_FILES, verbs.DOWNLOAD_FILES):
            for name in (verb.name, f"a{verb.name}"):
                own: Any = getattr(cls, name)
                if not any(getattr(own, mark, False) for mark in ("is_twin", "__isabstractmethod__", "at_root")):
                    setattr(cls, name, _at_root(verb, own))

    def __init__(self, *, root: str = "/", on_exists: OnExists = "error") -> None:
        super().__init__(on_exists=on_exists)
        self.root = paths.normalise(root)
        self._others: tuple[str, ...] = ()
        self._prefix = "" if self.root == paths.ROOT else str(self.root)

    # -- what an author gives ----------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def id(self) -> str:
        """A name for this sandbox, unique while it lives."""

    @abc.abstractmethod
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run `command` with `sh -c`; after `timeout` seconds it is ended and the exit code is 124."""

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Put files at new paths of the sandbox in existing directories. OSError."""
        for response in _own(self, verbs.UPLOAD_FILES)(self, list(files)):
            if response.error is not None:
                raise OSError(errors.errno_of(response.error), response.error)

    def deliver(self, files: Sequence[tuple[str, bytes]]) -> None:
        """`send`, or nothing: parts of a failed transfer are removed."""
        try:
            self.send(files)
        except OSError:
            with contextlib.suppress(OSError):
                self.ask(Script().call("rm -f", *(path for path, _ in files)), self.script_timeout_s)
            raise

    def fetch(self, path: str) -> bytes:
        """The bytes of a regular file at a path of the sandbox. OSError."""
        (response,) = _own(self, verbs.DOWNLOAD_FILES)(self, [path])
        if response.error is not None or response.content is None:
            error = response.error or "no content"
            raise OSError(errors.errno_of(error), errors.words_of(error))
        content: bytes = response.content
        return content

    def ask(self, script: Script, timeout_s: float, *, looks: bool = False, cut: bool = False) -> bytes:
        """Return the answer to a script, by one `execute`. Subclasses override it with faster ways.

        The script prints base64 between two random marks, so that prompts, stderr and remarks about the exit code are
        no part of the answer. Output that was cut is written to a file by a second run, and fetched.

        `looks`: it changes nothing, so its answer may be long. `cut`: when the time is over, what there is by then may
        be the answer. OSError: ETIMEDOUT, the error of the sandbox, or EIO with the output instead of an answer.
        """
        mark = nonce()
        quiet = f"{{\n{script.text}\n}} 2>/dev/null </dev/null"
        command = f"{SETTINGS}{LIBRARY}printf '\\n%s\\n' {mark}\n{quiet} | base64\nprintf '%s~\\n' {mark}"
        response = _execute(self, command, timeout_s)
        _, begun, rest = response.output.partition(f"\n{mark}\n")
        encoded, ended, _ = rest.partition(f"{mark}~")
        if ended:
            try:
                return base64.b64decode(encoded)
            except binascii.Error:
                raise OSError(errno.EIO, "The sandbox's shell has no base64") from None
        if response.exit_code == TIMED_OUT:
            raise oserror(errno.ETIMEDOUT)
        if begun and looks and (response.truncated or encoded):
            return _ask_for_file(self, script, timeout_s)
        line = response.output.replace(mark, "").strip().partition("\n")[0]
        raise OSError(errno.EIO, f"The sandbox's shell gave no answer: {line[:SHOWN] or 'nothing at all'}")

    def path_of(self, path: AgentPath) -> str:
        """The path in the sandbox. ENAMETOOLONG."""
        there = self._prefix + path if path != paths.ROOT else str(self.root)
        if len(there.encode("utf-8", "surrogateescape")) > PATH_MAX_BYTES:
            raise oserror(errno.ENAMETOOLONG)
        return there

    def leave_out(self, directories: Sequence[AgentPath]) -> None:
        """Leave out these paths, which hold other routes: from now on no listing and no search looks at them.

        Names that find(1) would take for patterns are not left out.
        """
        self._others = tuple(self.path_of(path) for path in directories if not _PATTERN.intersection(path))

    def search_script(self) -> Script:
        """A script that is to list or search."""
        return Script().call("fb_other", *self._others) if self._others else Script()

    # -- primitives --------------------------------------------------------------------------------------------

    def _list(self, path: AgentPath) -> list[FileInfo]:
        status, listing = status_of(self._look(self.search_script().call("fb_ls", self.path_of(path))))
        if status != "ok":
            raise failure(status)
        entries = entries_of(listing + END).entries
        return [info_of(paths.join(path, paths.to_text(entry.path)), entry) for entry in entries]

    def _load(self, path: AgentPath) -> Loaded:
        there = self.path_of(path)
        (piece,) = self.pieces([there])
        return Loaded(self.whole(there, piece), None, text.iso_time(piece.mtime_ns) if piece.code == "f" else None)

    def whole(self, there: str, piece: Piece) -> bytes:
        """The bytes of a file of which `pieces` has told. OSError."""
        if piece.code == "b":
            return self.fetch(there)
        if piece.code != "f":
            raise failure(piece.code)
        return piece.data

    def pieces(self, wanted: Sequence[str]) -> list[Piece]:
        """At most `BATCH_FILES` files at paths of the sandbox: their bytes, or code `b` for a larger one, or why
        there are none."""
        for _ in range(ATTEMPTS):
            mark = nonce()
            limit = self.answer_bytes if len(wanted) == 1 else self.answer_bytes // 4
            found = pieces_of(self._look(Script().call("fb_cat", mark, str(limit), *wanted)), mark)
            if found is not None and len(found) == len(wanted):
                return found
            if len(wanted) > 1:
                return [piece for path in wanted for piece in self.pieces([path])]
        raise OSError(errno.EIO, "The file changes while it is read")

    def real_paths(self, wanted: list[str]) -> list[str | None]:
        found: list[str | None] = [None] * len(wanted)
        there: list[tuple[int, str]] = []
        for index, path in enumerate(wanted):
            with contextlib.suppress(OSError, PathError):
                there.append((index, self.path_of(checked(path))))
        for batch in by_size(there, lambda item: 2 * len(item[1]), BATCH_FILES, PATHS_BYTES):
            script = Script().call("fb_real", str(self.root), *(path for _, path in batch))
            for (index, _), real in zip(batch, self._look(script).split(b"\0"), strict=False):
                if real == b"=":
                    found[index] = paths.normalise(wanted[index])
                elif real != b"!":
                    found[index] = paths.to_text(real) or paths.ROOT
        return found

    def _put(self, path: AgentPath, data: bytes, *, replace: bool) -> None:
        self._store(path, data, "over" if replace else "new")

    def _store(self, path: AgentPath, data: bytes, how: str) -> None:
        """Put a file at a path, as `_place` does. OSError."""
        if path == paths.ROOT:
            raise oserror(errno.EEXIST if how == "new" else errno.EISDIR)
        (failed,) = self._place([(self.path_of(path), data)], how)
        if failed is not None:
            raise failed

    def _rewrite(self, path: AgentPath, change: Callable[[bytes], bytes]) -> None:
        before = self._load(path).data
        after = change(before)
        if after == before:
            return
        self._store(path, after, hashlib.sha256(before).hexdigest())

    def _remove(self, path: AgentPath) -> None:
        self.change(Script().call("fb_rm", self.path_of(path)))

    def _rename(self, old: AgentPath, new: AgentPath) -> None:
        if new == paths.ROOT:
            raise oserror(errno.EEXIST)
        self.change(Script().call("fb_mv", self.path_of(old), self.path_of(new)))

    def _search(self, path: AgentPath, matcher: Matcher | None, pattern: str | None = None) -> Search:
        return SandboxSearch(self, path, matcher)

    # -- uploads -----------------------------------------------------------------------------------------------

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:  # type: ignore[override]
        """Store bytes at paths of the sandbox, replacing what is there. Its callers name paths below `root`."""
        answers = [not_bytes(path, content) or FileUploadResponse(path=path) for path, content in files]
        sound = [answer.error is None for answer in answers]
        items = ((path, bytes(content)) for path, content in compress(files, sound))
        outcomes = (failed for batch in _batches(items) for failed in self._place(batch, "over"))
        for answer, failed in zip(compress(answers, sound), outcomes, strict=True):
            answer.error = None if failed is None else code_of(failed)
        return answers

    def _place(self, batch: Batch, how: str) -> list[OSError | None]:
        """Put files in their places; why not, for each. `how`: `new`, `over`, or the sha256 of what is replaced."""
        try:
            if len(batch) > INLINE_FILES or sum(len(data) for _, data in batch) > self.inline_bytes:
                return self._place_sent(batch, how)
            script = Script()
            for there, data in batch:
                script.call("fb_put", how, there, nonce(), stdin=inline(data))
            return self._outcomes(script, len(batch))
        except OSError as error:
            return [error] * len(batch)

    def _place_sent(self, batch: Batch, how: str) -> list[OSError | None]:
        """`_place` of files that no command carries."""
        prepared = Script().call("fb_prepare", "new" if how == "new" else "over", *(there for there, _ in batch))
        outcomes, number = self._outcomes(prepared, len(batch)), nonce()
        sent = {
            index: f"{there.rpartition('/')[0]}/.fusebackend-{number}-{index}~"
            for index, (there, _) in enumerate(batch)
            if outcomes[index] is None
        }
        if sent:
            self.deliver([(beside, batch[index][1]) for index, beside in sent.items()])
            script = Script()
            for index, beside in sent.items():
                script.call("fb_put", how, batch[index][0], number, beside)
            for index, outcome in zip(sent, self._outcomes(script, len(sent)), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _outcomes(self, script: Script, count: int) -> list[OSError | None]:
        statuses = self.statuses(script)
        if len(statuses) != count:
            raise OSError(errno.EIO, f"The sandbox gave {len(statuses)} answers for {count} files")
        return [None if status == "ok" else failure(status) for status in statuses]

    # -- downloads ---------------------------------------------------------------------------------------------

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files at paths of the sandbox. Its callers name paths below `root`."""
        answers: list[FileDownloadResponse] = []
        for start in range(0, len(paths), BATCH_FILES):
            batch = paths[start : start + BATCH_FILES]
            try:
                answers += map(self._answer, batch, self.pieces(batch))
            except OSError as error:
                answers += [verbs.DOWNLOAD_FILES.refused(error, path) for path in batch]
        return answers

    @verbs.DOWNLOAD_FILES.answers()
    def _answer(self, path: str, piece: Piece) -> FileDownloadResponse:
        return FileDownloadResponse(path=path, content=self.whole(path, piece))

    # -- asking ------------------------------------------------------------------------------------------------

    def _look(self, script: Script) -> bytes:
        return self.ask(script, self.script_timeout_s, looks=True)

    def change(self, script: Script) -> None:
        """Run a script that answers with a status for each call. OSError for the first that is not `ok`."""
        for status in self.statuses(script):
            if status != "ok":
                raise failure(status)

    def statuses(self, script: Script) -> list[str]:
        """Run a script of several calls: a status of each, in their order."""
        answer = self.ask(script, self.script_timeout_s).decode("utf-8", "replace")
        # Others are the second line of what a tool says.
        lines = [line for line in split_lines(answer) if line == "ok" or line in ERRNO or line.startswith("!")]
        if not lines:
            raise OSError(errno.EIO, "The sandbox gave no answer")
        return lines


def _batches(items: Iterable[tuple[str, bytes]]) -> Iterator[Batch]:
    """In their order, and of a size that one command and one request can take."""
    for batch in by_size(items, lambda item: len(item[1]), PLACED_FILES, PLACED_BYTES):
        yield from by_size(batch, lambda item: 2 * len(item[0]), PLACED_FILES, PATHS_BYTES)


# -- paths below the root, and the sandbox's own -------------------------------------------------------------


class _Batch:
    """The items of one transfer: their paths below the root, and what the sandbox is asked for instead."""

    def __init__(self, sandbox: BaseSandbox, verb: Verb[Any], items: Sequence[Any]) -> None:
        sent = verb is verbs.UPLOAD_FILES
        self._paths = [item[0] if sent else item for item in items]
        self._refused: dict[int, Any] = {}
        self.there: list[Any] = []
        for index, path in enumerate(self._paths):
            try:
                place = sandbox.path_of(checked(path))
                if sent and place == sandbox.root:
                    raise oserror(errno.EISDIR)
                self.there.append((place, items[index][1]) if sent else place)
            except Refusal as error:
                self._refused[index] = verb.refused(error, path)

    def answered(self, found: Iterable[Any]) -> list[Any]:
        """Return an answer for each item: the sandbox's, by the path that its caller gave."""
        left = iter(found)
        answers = [self._refused.get(index) or next(left) for index in range(len(self._paths))]
        for path, answer in zip(self._paths, answers, strict=True):
            answer.path = path
        return answers


def _at_root(verb: Verb[Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Make the verb for paths below the root out of an author's, which takes paths of the sandbox. Called by `super()`
    it is the author's: the paths are the sandbox's by then."""

    def parted(self: BaseSandbox, items: Sequence[Any]) -> tuple[Sequence[Any], Callable[[Iterable[Any]], list[Any]]]:
        """What the author's verb is given, and what makes the answer of its answers."""
        if getattr(type(self), own.__name__) is not verb_below:
            return items, list
        batch = _Batch(self, verb, items)
        return batch.there, batch.answered

    def below(self: BaseSandbox, items: Sequence[Any], **conditions: Sequence[Any] | None) -> list[Any]:
        if any(conditions.values()):  # each file by a script that compares
            return FileVerbs.upload_files(self, list(items), **conditions)
        there, answered = parted(self, items)
        return answered(own(self, there))

    async def abelow(self: BaseSandbox, items: Sequence[Any], **conditions: Sequence[Any] | None) -> list[Any]:
        if any(conditions.values()):
            return await FileVerbs.aupload_files(self, list(items), **conditions)
        there, answered = parted(self, items)
        return answered(await own(self, there))

    verb_below: Any = functools.wraps(own)(abelow if inspect.iscoroutinefunction(own) else below)
    verb_below.at_root = True
    made: Callable[..., Any] = verb_below
    return made


def _own(sandbox: BaseSandbox, verb: Verb[Any]) -> Callable[..., list[Any]]:
    """Return the author's verb, which takes paths of the sandbox. OSError where there is none."""
    own: Callable[..., list[Any]] = getattr(type(sandbox), verb.name).__wrapped__
    if own is getattr(BaseSandbox, verb.name):
        raise OSError(errno.ENOTSUP, f"{type(sandbox).__name__} has no way to transfer bytes")
    return own


def inline(data: bytes) -> str:
    """Bytes as lines that a script reads."""
    return base64.encodebytes(data).decode("ascii").rstrip("\n")


def _ask_for_file(sandbox: BaseSandbox, script: Script, timeout_s: float) -> bytes:
    path = sandbox.path_of(AgentPath(f"/.fusebackend-{nonce()}~"))
    body = f'fb_body() {{\n{script.text}\n}}\nfb_keep() {{ fb_body 2>/dev/null </dev/null >"$1"; }}\n'
    try:
        _execute(sandbox, SETTINGS + LIBRARY + body + Script().call("fb_keep", path).text, timeout_s)
        return sandbox.fetch(path)
    finally:
        _execute(sandbox, Script().call("rm -f", path).text, timeout_s)


def _execute(sandbox: BaseSandbox, command: str, timeout_s: float) -> ExecuteResponse:
    """Call `execute`; any error of it becomes an `OSError`."""
    try:
        return sandbox.execute(command, timeout=max(1, math.ceil(timeout_s)))
    except OSError:
        raise
    except Exception as error:  # an SDK's own
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}".partition("\n")[0]) from error


# -- grep and glob --------------------------------------------------------------------------------------------

LONGEST_S = 600.0
"""For a search without a limit."""

READ_FILES = 50
"""Candidates that are read at a time, so that a search that is limited does not read all."""


class SandboxSearch(Search):
    """`grep` and `glob`: the regular files at or below a path with a matching path relative to it.

    The sandbox's `find` and `grep` list the files, and those that hold the literal. Patterns are matched here, by the
    rules of all backends, and so are the lines of a file. A `glob` is one command; a `grep` is one, and another for
    each two hundred files that hold the literal.

    `files` and `lines` raise, besides `OSError` for a path that can't be searched: `Spent` when the budget is, and
    `Unreadable` at the end of a search that was not allowed to see everything.
    """

    def __init__(self, sandbox: BaseSandbox, path: AgentPath, matcher: Matcher | None) -> None:
        super().__init__(path, matcher)
        self._sandbox = sandbox
        self._budget = budget.current()
        self._below = matcher.prefix if matcher is not None else ()
        self._depth = ""
        if matcher is not None and matcher.depth is not None:
            self._depth = str(matcher.depth - len(self._below))

    def files(self) -> Iterator[FileInfo]:
        found = self._ask("fb_find", self._depth)
        for path, entry in self._matching(found):
            yield info_of(path, entry)
        self._finish(found)

    def lines(self, pattern: str, limit: int | None) -> Iterator[Lines]:
        if "\n" in pattern or "\0" in pattern or not text.is_utf8(pattern):  # no line of a text file holds it
            self._ask("fb_find", "0")  # whether the path can be searched is to be said all the same
            return
        max_bytes = self._sandbox.max_search_bytes
        found = self._ask("fb_grep", self._depth, str(max_bytes // 512), pattern)
        incomplete = found.unreadable
        matching = self._matching(found)
        incomplete |= any(entry.size > max_bytes for _, entry in matching)
        candidates = [path for path, entry in matching if entry.size <= max_bytes]
        for start in range(0, len(candidates), READ_FILES):
            for path, data in self._read(candidates[start : start + READ_FILES]):
                if data is None or len(data) > max_bytes:
                    incomplete = True
                    continue
                yield path, text.grep_lines((data,), pattern, limit, self._budget.hold)
        self._finish(found._replace(unreadable=incomplete))

    def _read(self, candidates: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """The bytes of files, None for those that can't be read; those that are gone are left out."""
        there = [self._sandbox.path_of(AgentPath(path)) for path in candidates]
        self._budget.require()
        for path, source, piece in zip(candidates, there, self._sandbox.pieces(there), strict=True):
            self._budget.require()
            try:
                yield path, self._sandbox.whole(source, piece)
            except OSError as error:
                if error.errno not in VANISHED:
                    yield path, None

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self, function: str, *arguments: str) -> Found:
        """Return the files that the sandbox finds; paths are relative to the path that is searched, the file at it
        being ``."""
        empty = Found([], True, False)
        if not all(map(is_name, self._below)):
            return empty
        where = (self._sandbox.path_of(self._path), *self._below)
        script = self._sandbox.search_script().call(function, *arguments, *where)
        self._budget.require()
        try:
            answer = self._sandbox.ask(script, min(self._budget.left_s, LONGEST_S), looks=True, cut=True)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise Spent from None
            raise
        status, listing = status_of(answer)
        if status == "f":
            return entries_of(listing + END)
        if status == "ok":
            return entries_of(listing)
        if status == "n":
            return empty
        if status == "x":
            return empty._replace(unreadable=True)
        raise failure(status)

    def _matching(self, found: Found) -> list[tuple[str, Entry]]:
        """Files by their whole paths, in their order."""
        matching: list[tuple[str, Entry]] = []
        prefix = "".join(f"{segment}/" for segment in self._below)
        for entry in found.entries:
            relative = prefix + paths.to_text(entry.path) if entry.path else ""
            if self._matches(relative):
                matching.append((paths.join(self._path, relative) if relative else self._path, entry))
        return sorted(matching, key=lambda item: item[0])

    def _finish(self, found: Found) -> None:
        if not found.ended:
            raise Spent
        if found.unreadable:
            raise Unreadable
