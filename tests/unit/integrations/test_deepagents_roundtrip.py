"""Trees that deepagents writes and we read, that we write and deepagents reads, and the same calls on both."""

import contextlib
import os
import tempfile

import pytest
from for_each import for_each
from nodes import put
from profiles import examples

pytest.importorskip("deepagents")

from deepagents.backends import FilesystemBackend as TheirFilesystem
from hypothesis import given, settings
from hypothesis import strategies as st
from their_backends import DictState

from fusebackend.backends import (
    CompositeBackend,
    FilesystemBackend,
    InMemoryBackend,
    SqliteBackend,
    StateBackend,
    volume_of,
)
from fusebackend.integrations.deepagents import adopt, export
from fusebackend.testing.by_path import at, mkdir
from fusebackend.volumes.contents import opened

BIG = bytes(range(256)) * (5 << 12)  # 5 MiB
BIG_TEXT = ("一行 of text\n" * (5 << 16)).encode()[: 5 << 20]
EXTENSIONS = ("", ".txt", ".md", ".png", ".PDF", ".dat", ".한글")

# `..` anywhere in a name is refused by their FilesystemBackend, and a name that starts with a dot is hidden from some.
names = st.builds(
    lambda stem, extension: stem + extension,
    st.text(st.characters(exclude_characters="/\0.~", exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
        lambda name: name.strip() == name
    ),
    st.sampled_from(EXTENSIONS),
)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=200) | st.lists(
    st.sampled_from(["one", "", " ", "\ttab", "日本語", "a\x0cb", "line\u2028sep"]), max_size=12
).map("\n".join)
contents = texts.map(str.encode) | texts.map(lambda text: (text + "\n").encode()) | st.binary(max_size=300)


def without_clashes(tree):
    """No file may be a directory of another, and no two names differ by case or composition alone."""
    return {path: data for path, data in tree.items() if not any(other.startswith(path + "/") for other in tree)}


trees = st.dictionaries(paths, contents, max_size=8).map(without_clashes)


class Pair:
    """A backend of ours and one of theirs over the same files."""

    def __init__(self, kind, directory):
        self.kind = kind
        self.release = []
        if kind == "directory":
            self.ours, self.theirs = FilesystemBackend(directory), TheirFilesystem(directory)
        elif kind in ("state", "state of lists"):
            self.theirs = DictState()
            file_format = "v1" if kind == "state of lists" else "v2"
            self.ours = StateBackend(_SameDict(self.theirs.files), file_format=file_format)
        elif kind.startswith("adopted"):
            self.theirs = TheirFilesystem(directory) if kind == "adopted directory" else DictState()
            self.ours = adopt(self.theirs)
        else:
            native = InMemoryBackend() if kind == "memory" else SqliteBackend(directory + "/files.db")
            self.release.append(native.close)
            self.ours = CompositeBackend(native, {"/route/": InMemoryBackend()})
            self.theirs = export(self.ours)
        if hasattr(self.ours, "close"):
            self.release.insert(0, self.ours.close)

    def close(self):
        for release in self.release:
            release()


class _SameDict:
    """A runtime whose state is one dict, changed in place, as deepagents' backend over a dict changes it."""

    def __init__(self, files):
        self._files = files

    @property
    def state(self):
        return _Replacing(self._files)


class _Replacing(dict):
    def __init__(self, files):
        super().__init__(files=files)
        self._files = files

    def __setitem__(self, key, value):
        self._files.clear()
        self._files.update(value)


KINDS = ("directory", "state", "state of lists", "adopted directory", "adopted state", "memory", "sqlite")
"""`unit/backends/store/test_store_deepagents.py` has the stores."""

generous = settings(max_examples=examples(25))


@pytest.fixture(params=KINDS)
def pair_of(request):
    """A function that makes a new pair over empty files."""
    made = []

    def make():
        directory = tempfile.TemporaryDirectory()
        pair = Pair(request.param, directory.name)
        made.append((pair, directory))
        return pair

    yield make
    for pair, directory in made:
        pair.close()
        directory.cleanup()


def downloaded(backend, tree):
    answers = backend.download_files(list(tree))
    assert [answer.error for answer in answers] == [None] * len(tree)
    return {answer.path: answer.content for answer in answers}


def through_the_kernel(volume, path):
    """The bytes of a file by lookup, open and read, as the mount reads it."""
    attr = at(volume, path.strip("/").encode())
    with opened(volume, attr.node, os.O_RDONLY):
        return volume.read(attr.node, 0, attr.size + 1)


def _is_text(data):
    try:
        return data.decode() is not None
    except UnicodeDecodeError:
        return False


@given(tree=trees)
@generous
def test_what_one_uploads_or_writes_the_other_reads_and_the_kernel_too(pair_of, tree):
    for writer, reader in (("theirs", "ours"), ("ours", "theirs")):
        uploaded, written = pair_of(), pair_of()
        answers = getattr(uploaded, writer).upload_files(list(tree.items()))
        assert all(answer.error is None for answer in answers)
        assert downloaded(getattr(uploaded, reader), tree) == tree
        if not any("\n" in path for path in tree):  # their StateBackend takes a newline for the end of a name in glob
            assert {info["path"] for info in adopt(uploaded.ours).glob("/**").matches or []} <= set(tree)
        texts = {path: data for path, data in tree.items() if _is_text(data)}
        for path, data in texts.items():
            assert getattr(written, writer).write(path, data.decode()).error is None
        assert downloaded(getattr(written, reader), texts) == texts
        volume = volume_of(adopt(written.ours).mounts()["/"])
        assert {path: through_the_kernel(volume, path) for path in texts} == texts


@given(tree=trees)
@generous
def test_what_the_kernel_writes_they_read(pair_of, tree):
    pair = pair_of()
    if pair.kind == "directory":
        return  # the kernel's own business, and in the tests of DirectoryVolume
    volume = volume_of(adopt(pair.ours).mounts()["/"])
    for path, data in tree.items():
        *directories, name = path.strip("/").encode().split(b"/")
        for depth in range(1, len(directories) + 1):
            with contextlib.suppress(FileExistsError):
                mkdir(volume, b"/".join(directories[:depth]))
        put(volume, name, data, at(volume, b"/".join(directories)).node)
    assert downloaded(pair.theirs, tree) == tree


@for_each("data", [BIG, BIG_TEXT, BIG_TEXT + b"\n"], ids=["bytes", "text", "text and a newline"])
def test_five_mebibytes_both_ways(pair_of, data):
    pair = pair_of()
    assert pair.theirs.upload_files([("/big", data)])[0].error is None
    assert downloaded(pair.ours, ["/big"]) == {"/big": data}
    assert pair.ours.upload_files([("/back", data)])[0].error is None
    assert downloaded(pair.theirs, ["/back"]) == {"/back": data}


# -- the same calls on both ------------------------------------------------------------------------------------

SEGMENTS = ("a", "b", "note.md", "pic.png", "한글")
plain_paths = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
plain_texts = st.lists(st.sampled_from(["one", "two two", "", "日本", "x\u2028y", "\x0c"]), max_size=6).map("\n".join)
plain_texts = plain_texts.flatmap(lambda text: st.sampled_from([text, text + "\n"]))
words = st.sampled_from(["one", "two", "日", "none", "\n", "one\n", "y"])
patterns = st.sampled_from(["*", "*.md", "**/*.md", "/*.md", "a/**", "{note,pic}.*", "[ab]", "../x", "*.{md", "/a/*"])
steps = st.one_of(
    st.tuples(st.just("write"), plain_paths, plain_texts),
    st.tuples(st.just("edit"), plain_paths, words, words, st.booleans()),
    st.tuples(st.just("delete"), plain_paths),
    st.tuples(st.just("read"), plain_paths, st.integers(-2, 8), st.integers(-1, 5)),
    st.tuples(st.just("ls"), plain_paths | st.just("/")),
    st.tuples(
        st.just("grep"), st.sampled_from(["one", "two", "日", "nothing"]), st.none() | plain_paths,
        st.none() | patterns, st.none() | st.integers(0, 4),
    ),
    st.tuples(st.just("glob"), patterns, st.none() | plain_paths),
    st.tuples(st.just("upload_files"), st.lists(st.tuples(plain_paths, contents), max_size=3)),
    st.tuples(st.just("download_files"), st.lists(plain_paths, max_size=3)),
)  # fmt: skip


def ask(backend, step):
    verb, *arguments = step
    if verb == "grep":
        return backend.grep(*arguments[:3], max_count=arguments[3])
    return getattr(backend, verb)(*arguments)


def shown(step, result):
    """What the contract says of a result; the words of an error only where an agent is told them."""
    verb = step[0]
    if verb in ("upload_files", "download_files"):
        return [(one.path, one.error, getattr(one, "content", None)) for one in result]
    if result.error is not None:
        same_words = verb == "ls" or any(
            words in result.error for words in ("not found in file", "appears", "exceeds file length")
        )
        return "error", result.error if same_words else None
    if verb == "ls":
        return [(info["path"], info["is_dir"], 0 if info["is_dir"] else info["size"]) for info in result.entries]
    if verb == "read":
        data = result.file_data
        window = (result.total_lines, result.start_line, result.end_line, result.next_offset, result.no_lines_requested)
        return data["content"], data["encoding"], window
    if verb == "grep":
        matches = [(match["path"], match["line"], match["text"]) for match in result.matches]
        # Which of too many matches are kept, only the search knows.
        return (len(matches), True) if result.truncated else (sorted(matches), False)
    if verb == "glob":
        return [(info["path"], info["size"]) for info in result.matches], result.truncated
    return vars(result)


def differs_on_purpose(step, ours, theirs, files):
    """Where this package answers otherwise, and why."""
    if step[0] == "read" and theirs.error is None and ours.error is None and theirs.total_lines != ours.total_lines:
        content = files.download_files([step[1]])[0].content.decode()
        return (len(content.splitlines()), content.removesuffix("\n").count("\n") + 1) == (
            theirs.total_lines, ours.total_lines,
        )  # lines end at LF alone here  # fmt: skip
    if step[0] == "read" and "exceeds file length" in (ours.error or theirs.error or ""):
        content = files.download_files([step[1]])[0].content.decode()
        return len(content.splitlines()) != content.removesuffix("\n").count("\n") + 1  # as above
    if step[0] == "read" and theirs.error is None and theirs.file_data["content"].startswith("System reminder"):
        return not ours.file_data["content"].strip()  # blank: the text itself, which deepagents' tool reminds of
    if step[0] == "read" and theirs.error is not None and "codec can't decode" in theirs.error:
        return ours.file_data["encoding"] == "base64"  # not text: whole, instead of an error
    if step[0] == "ls" and ours.error and theirs.error:
        return ours.error.endswith("not_a_directory")  # below a file; theirs says path_not_found
    if step[0] == "edit" and ours.error and theirs.error and step[2].endswith("\n"):
        return True  # both say that the file has no newline at its end, in other words
    if step[0] in ("grep", "glob") and step[2] is not None and theirs.error is None:
        # Below a file, or where nothing is, they find nothing; we say so. Of a file itself, glob finds it here, and
        # grep's filter holds for it too.
        itself = any(match["path"] == step[2] for match in [*(ours.matches or []), *theirs.matches])
        itself |= step[0] == "grep" and files.download_files([step[2]])[0].error is None  # `max_count=0` shows none
        return ours.error is not None or itself
    return False


@given(script=st.lists(steps, max_size=25))
@settings(max_examples=examples(100))
def test_the_same_calls_have_the_same_results(script):
    with tempfile.TemporaryDirectory() as theirs, tempfile.TemporaryDirectory() as ours:
        original = TheirFilesystem(theirs)
        with FilesystemBackend(ours) as backend:
            exported = export(backend)
            for step in script:
                expected, found = ask(original, step), ask(exported, step)
                assert type(found) is type(expected)
                if not differs_on_purpose(step, found, expected, backend):
                    assert shown(step, found) == shown(step, expected), step
