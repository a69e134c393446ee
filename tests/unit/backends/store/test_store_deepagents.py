"""What deepagents' own `StoreBackend` writes ours reads, and the other way round, byte for byte, in three stores."""

from __future__ import annotations

import pytest
from deepagents.backends import StoreBackend as Theirs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples
from stores import KINDS

from fusebackend.backends import StoreBackend

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and not name.startswith("~")
)
NAMES |= st.sampled_from(["a", "b", "file.md", "%2F", "%25", "a%=", "x.json", ".hidden", "日本語.txt", "with space"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    ["", "\n", "one\n", "one\ntwo", "\r\n", "tab\t\x0b\x0c\u2028", "\ufeff", "주제 색상\n" * 3]
)
DATA = TEXTS.map(str.encode) | st.binary(max_size=60)


def is_tree(files):
    """No file is a directory as well."""
    return not any(other != path and other.startswith(path + "/") for path in files for other in files)


TREES = st.dictionaries(PATHS, DATA, min_size=1, max_size=6).filter(is_tree)
SETTINGS = settings(max_examples=examples(10))


@pytest.fixture(scope="module")
def both_of(store_of):
    """A function that gives ours and theirs over one store, in a namespace that no test has used."""

    def both(kind):
        store, namespace = store_of(kind)
        ours = StoreBackend(store, namespace=namespace, on_exists="replace")
        return ours, Theirs(namespace=lambda _: namespace, store=store), store, namespace

    return both


def can_hold(kind, data):
    """PostgreSQL takes no NUL in a text; deepagents raises where ours uses base64."""
    try:
        return kind != "postgres" or "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return True


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@example({"/nul.txt": b"a\0b"})
@given(files=TREES)
def test_what_one_uploads_the_other_reads(both_of, kind, files):
    for is_ours in (True, False):
        ours, theirs, *_ = both_of(kind)
        writer, reader = (ours, theirs) if is_ours else (theirs, ours)
        files = {path: data for path, data in files.items() if is_ours or can_hold(kind, data)}
        assert all(answer.error is None for answer in writer.upload_files(list(files.items())))
        assert [answer.content for answer in reader.download_files(list(files))] == list(files.values())
        assert _tree(ours) == _tree(theirs)
        sizes = {info["path"]: info["size"] for directory in _tree(ours) for info in ours.ls(directory).entries}
        assert {path: sizes[path] for path in files} == {path: len(data) for path, data in files.items()}


def _tree(backend):
    """Every directory with its entries, as `ls` tells. The sizes that deepagents tells of bytes are of their base64."""
    tree = {}
    left = ["/"]
    while left:
        directory = left.pop()
        entries = backend.ls(directory).entries
        tree[directory] = [(info["path"], info.get("is_dir", False)) for info in entries]
        left += [info["path"] for info in entries if info.get("is_dir")]
    return tree


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(path=PATHS, first=TEXTS, second=TEXTS)
def test_both_write_and_edit_the_same_file(both_of, kind, path, first, second):
    ours, theirs, *_ = both_of(kind)
    if kind == "postgres":
        first, second = first.replace("\0", ""), second.replace("\0", "")
    for writer, reader, text in ((theirs, ours, first), (ours, theirs, second), (theirs, ours, first + second)):
        assert writer.write(path, text).error is None
        assert reader.download_files([path])[0].content == text.encode()
    marked = f"<<{first}>>"
    for writer, reader in ((ours, theirs), (theirs, ours)):
        assert writer.write(path, marked).error is None
        assert reader.edit(path, "<<", "[[").error is None
        assert writer.edit(path, ">>", "]]", True).error is None
        assert ours.download_files([path])[0].content == theirs.download_files([path])[0].content


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_has_the_form_that_theirs_has(both_of, kind):
    ours, theirs, store, namespace = both_of(kind)
    ours.upload_files([("/ours.txt", b"text\n"), ("/ours.bin", b"\xff\x00")])
    theirs.upload_files([("/theirs.txt", b"text\n"), ("/theirs.bin", b"\xff\x00")])
    for suffix in ("txt", "bin"):
        mine, other = (store.get(namespace, f"/{name}.{suffix}").value for name in ("ours", "theirs"))
        assert mine.keys() == other.keys() == {"content", "encoding", "created_at", "modified_at"}
        assert (mine["content"], mine["encoding"]) == (other["content"], other["encoding"])
        assert len(mine["modified_at"]) == len(other["modified_at"])
        assert mine["modified_at"][-6:] == other["modified_at"][-6:] == "+00:00"
