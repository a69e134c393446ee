"""Backends with `ls`, `read` and `write` only: their bytes by the kernel face, exact or refused (`textfiles.py`)."""

import errno
import logging
import os

import hypothesis
import pytest
from agentface import get
from for_each import for_each
from hypothesis import strategies as st
from nodes import ME, whole
from profiles import examples
from seed_backends import TextBackend

from fusebackend.backends import CompositeBackend, ForeignVolume, InMemoryBackend, VolumeBackend
from fusebackend.base.errors import FILE_NOT_FOUND, IS_DIRECTORY
from fusebackend.composite.router import ReportingFace
from fusebackend.dialects.agent_face import AgentFace
from fusebackend.protocol import ROOT_NODE, AttrChanges
from fusebackend.testing.conformance import BackendConformance
from fusebackend.testing.posix.case import refused

VARIANTS = [
    {"verbs": verbs, "reads": reads, "replaces": replaces}
    for verbs in ((), ("edit",), ("delete",), ("edit", "delete"))
    for reads in ("numbered", "records", "plain")
    for replaces in (False, True)
]


def face_of(content=None, **options):
    """A face, and the files of the backend behind it; with content they are one, `/f`."""
    backend = TextBackend(**options)
    backend.files.update({} if content is None else {"/f": content})
    return AgentFace(backend, "it"), backend.files


def upload(face, data, path="/f"):
    (answer,) = face.upload_files([(path, data)])
    return answer.error


@pytest.mark.configuration
class TestNumbered(BackendConformance):
    """The whole suite, by the kernel face of a backend that has no verbs for bytes."""

    any_name = byte_exact = False
    # Numbered lines lose the line ends that these are about.
    test_grep_splits_lines_at_newlines_alone = test_edit_of_one_mixed_line_leaves_the_others = None
    test_edit_takes_what_read_shows = test_a_line_has_the_number_that_grep_gives_it = None
    test_windows_put_together_are_the_file = test_white_space_alone_has_no_window_and_a_reminder = None
    test_crlf_is_lf_in_the_window_and_stays_in_the_file = None

    @pytest.fixture
    def backend(self):
        return VolumeBackend(ForeignVolume(TextBackend(("edit", "delete"))))


# -- reading ---------------------------------------------------------------------------------------------------


TEXTS = [
    "", "one", "one\n", "one\ntwo", "one\ntwo\n", "\n", "\n\n", "one\n\n", "one\r\n", "one\r\ntwo\r\n", "ü\n",
    "naïve", "x" * 12_000 + "\n", "     1\tnumbers\n     2\tof its own\n", "     1\tone\n",
]  # fmt: skip


@for_each("reads", ["numbered", "records", "plain"])
@for_each("content", TEXTS)
def test_what_text_and_size_tell_is_read_exactly(content, reads):
    face, _ = face_of(content, reads=reads)
    face.backend.exact_sizes = True
    assert get(AgentFace(face.backend, "it"), "/f") == content.encode()


@for_each("content", ["one\r\ntwo\n", "one\u2028two\u2028", "one\ntwo\r\nthree\n", "one\r\ntwo\r\nthree"])
def test_line_ends_that_nothing_tells_are_an_error(content):
    face, _ = face_of(content)
    assert "The bytes of '/f' are not known" in get(face, "/f")


def test_numbered_lines_without_a_size_and_reminders_are_an_error():
    face, _ = face_of("one\n", sizes=None)
    assert "its listing has no size" in get(face, "/f")
    face, files = face_of(" \n")
    face.backend.read = lambda file_path, offset=0, limit=2000: "System reminder: File exists but has empty contents"
    assert "nothing can be seen in it" in get(face, "/f")
    files["/f"] = ""
    assert get(face, "/f") == b""


@pytest.mark.parametrize("reads", ["records", "plain"])
def test_text_as_it_is_needs_no_size(reads):
    face, _ = face_of("one\ntwo", reads=reads, sizes=None)
    assert get(face, "/f") == b"one\ntwo"


def test_a_unit_of_sizes_is_learned():
    face, files = face_of("naïve")  # 6 bytes; or 6 characters with a newline
    assert "does not tell which text it is" in get(face, "/f")
    files["/g"] = "größer als größer\n"
    assert get(face, "/g") == files["/g"].encode()
    assert get(face, "/f") == "naïve".encode()
    face, files = face_of(sizes="characters")
    files.update({"/f": "größer\n", "/g": "naïve\n"})
    assert get(face, "/f") == "größer\n".encode() and get(face, "/g") == "naïve\n".encode()


def test_a_line_that_was_cut_and_bytes_that_are_no_text_are_an_error():
    face, _ = face_of("x" * 9000 + "\nend\n")
    whole = face.backend.read
    face.backend.read = lambda *args, **options: "\n".join(row[:2000] for row in whole(*args, **options).split("\n"))
    assert "are not known" in get(face, "/f")
    face.backend.read = lambda file_path, offset=0, limit=2000: b"\xff\xfe".decode()
    assert "UnicodeDecodeError" in get(face, "/f")
    face.backend.read = lambda file_path, offset=0, limit=2000: "\udcff"
    assert "no text" in get(face, "/f")


def test_records_of_base64_are_bytes():
    face, _ = face_of("stand-in", reads="records")
    face.backend.read = lambda file_path: {"file_data": {"content": "//4=", "encoding": "base64"}}
    assert get(face, "/f") == b"\xff\xfe"
    face.backend.read = lambda file_path: {
        "file_data": {"content": "//4=", "encoding": "base64"}, "start_line": 1, "end_line": 1, "total_lines": 9,
    }  # fmt: skip
    assert "a piece of base64" in get(face, "/f")


def test_what_is_missing_or_a_directory_has_its_code():
    face, files = face_of()
    files["/d/f"] = "x"
    answers = face.download_files(["/none", "/d", "/none/f", "/d/f", "/"])
    codes = [FILE_NOT_FOUND, IS_DIRECTORY, FILE_NOT_FOUND, None, IS_DIRECTORY]
    assert [answer.error for answer in answers] == codes
    assert answers[3].content == b"x"


def test_a_file_that_changes_between_listing_and_reading_is_read_again():
    face, files = face_of()
    files["/f"] = "before"
    lists = face.backend.ls_info
    contents = iter(["after it was listed\n", "after it was listed\n"])

    def ls_info(path):
        found = lists(path)
        files["/f"] = next(contents, files["/f"])
        return found

    face.backend.ls_info = ls_info
    assert get(face, "/f") == b"after it was listed\n"


# -- writing ---------------------------------------------------------------------------------------------------


def test_an_upload_by_other_verbs_is_reported_once(monkeypatch):
    reported = []
    monkeypatch.setattr(ReportingFace, "_report", lambda face, volume, changed, reports: reported.append(changed))
    assert upload(ReportingFace(TextBackend(), "it"), b"one\n") is None
    assert reported == [["/f"]]


def test_line_ends_that_would_not_be_read_back_are_refused_and_leave_what_was():
    face, files = face_of(verbs=("edit",))
    assert upload(face, b"one\n") is None
    for data in (b"one\x0ctwo\n", b"one\r\ntwo", "one\u2028".encode(), b"a\rb"):
        assert upload(face, data) == os.strerror(errno.EILSEQ)
    assert files == {"/f": "one\n"}
    assert upload(face, b"one\r\ntwo\r\n") is None and files == {"/f": "one\r\ntwo\r\n"}
    face, files = face_of(reads="plain", replaces=True)
    assert upload(face, b"a\rb") == os.strerror(errno.EILSEQ), "it may be one that numbers lines"
    assert upload(face, b"one\n") is None and upload(face, b"a\rb") is None and files == {"/f": "a\rb"}


def test_a_backend_that_keeps_something_else_than_what_it_was_given_is_told(caplog):
    face, _ = face_of()
    write = face.backend.write
    face.backend.write = lambda path, content: write(path, content.rstrip("\n"))
    assert upload(face, b"one\n") == os.strerror(errno.EILSEQ)
    assert "reads back as something else" in caplog.text


def test_an_edit_that_fails_changes_nothing_and_a_write_that_fails_brings_back_what_was_deleted():
    face, files = face_of("one\n", verbs=("edit",))
    face.backend.edit = lambda *_, **__: {"error": "locked"}
    assert upload(face, b"two\n") == "locked" and files == {"/f": "one\n"}
    face, files = face_of("one\n", verbs=("delete",))
    write = face.backend.write
    face.backend.write = lambda path, content: {"error": "full"} if content == "two\n" else write(path, content)
    assert upload(face, b"two\n") == "full" and files == {"/f": "one\n"}


# -- the kernel face -------------------------------------------------------------------------------------------


def volume_of(**options):
    backend = TextBackend(**options)
    return ForeignVolume(backend, ttl_s=0), backend.files


def save(volume, name, data, flags=os.O_WRONLY):
    """`open`, `write` in two pieces with a `close` of a duplicate before, `close`. Returns the errno of what failed."""
    try:
        try:
            node = volume.lookup(ROOT_NODE, name).node
            volume.open(node, flags)
        except FileNotFoundError:
            node = volume.create(ROOT_NODE, name, 0o644, flags, ME).node
    except OSError as error:
        return error.errno
    try:
        volume.setattr(node, AttrChanges(size=0))
        volume.flush(node)
        volume.write(node, 0, data[: len(data) // 2])
        volume.write(node, len(data) // 2, data[len(data) // 2 :])
        (volume.flush if data else volume.fsync)(node)
    except OSError as error:
        return error.errno
    finally:
        volume.release(node, flags)
    return 0


def load(volume, name):
    try:
        return whole(volume, volume.lookup(ROOT_NODE, name).node)
    except OSError as error:
        return error.errno


def test_what_can_not_be_replaced_is_eexist_and_stays():
    volume, files = volume_of()
    assert not volume.features.read_only
    assert save(volume, b"f", b"one\n") == 0 and files == {"/f": "one\n"}
    assert save(volume, b"f", b"two\n") == errno.EEXIST
    assert load(volume, b"f") == b"one\n" and files == {"/f": "one\n"}
    assert save(volume, b"f", b"two\n") == errno.EEXIST, "now at open"
    node = volume.lookup(ROOT_NODE, b"f").node
    refused(errno.EEXIST, volume.open, node, os.O_WRONLY)
    assert save(volume, b"g", b"new\n") == 0 and load(volume, b"g") == b"new\n"
    volume.close()


def test_what_is_no_text_is_eilseq_and_leaves_nothing():
    volume, files = volume_of(verbs=("delete",))
    node = volume.create(ROOT_NODE, b"f", 0o644, os.O_WRONLY, ME).node
    volume.write(node, 0, b"\xff")
    for close in (volume.flush, volume.flush, volume.fsync):  # the first may be that of a forked child
        refused(errno.EILSEQ, close, node)
    volume.release(node, os.O_WRONLY)
    assert save(volume, b"f", b"\x89PNG\xff") == errno.EILSEQ
    assert files == {} and load(volume, b"f") == errno.ENOENT
    assert save(volume, b"f", b"text\n") == 0
    assert save(volume, b"f", b"\xff") == errno.EILSEQ
    assert load(volume, b"f") == b"text\n" and files == {"/f": "text\n"}
    volume.close()


def test_what_is_not_known_is_eio_and_can_be_deleted():
    volume, files = volume_of(verbs=("delete",))
    files["/f"] = "one\r\ntwo\n"
    assert load(volume, b"f") == errno.EIO
    assert save(volume, b"f", b"new\n") == errno.EIO and files == {"/f": "one\r\ntwo\n"}
    volume.unlink(ROOT_NODE, b"f")
    assert files == {}


def test_an_empty_file_is_stored_when_it_is_closed_for_the_last_time():
    volume, files = volume_of()
    node = volume.create(ROOT_NODE, b"f", 0o644, os.O_RDWR, ME).node
    volume.flush(node)
    assert files == {}
    volume.release(node, os.O_RDWR)
    assert files == {"/f": ""}


def test_a_route_of_a_composite_takes_files_from_others():
    text = TextBackend(("delete",))
    composite = CompositeBackend(InMemoryBackend(), {"/text/": text})
    composite.write("/f", "one\n")
    assert composite.move("/f", "/text/f").error is None and text.files == {"/f": "one\n"}
    assert composite.download_files(["/text/f"])[0].content == b"one\n"


# -- against a model -------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    ["a", "b c", "ü", "\n", "\n\n", "\r\n", "\r", "\x0c", "\u2028", "     2\tx", "x" * 5001, "Error"]
)
contents = st.lists(pieces, max_size=8).map("".join).map(str.encode) | st.sampled_from([b"\xff", b"\n\xc3"])
steps = st.lists(
    st.tuples(st.sampled_from(["save", "append", "unlink"]), st.sampled_from([b"f", b"g"]), contents), max_size=8
)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@hypothesis.settings(max_examples=examples(30), deadline=None, phases=[hypothesis.Phase.generate])
@hypothesis.given(steps=steps, page=st.sampled_from([1, 2, 1000]), exact=st.booleans())
def test_every_change_is_exact_or_an_error_that_changed_nothing(options, steps, page, exact):
    logging.disable(logging.CRITICAL)
    try:
        check(options, steps, page, exact)
    finally:
        logging.disable(logging.NOTSET)


def check(options, steps, page, exact):
    """A dict has what each successful step wrote; the backend never holds anything else, and what is read is that."""
    backend = TextBackend(**options, page=page)
    backend.exact_sizes = exact
    volume = ForeignVolume(backend, ttl_s=0)
    model: dict[str, bytes] = {}
    for verb, name, data in steps:
        path = "/" + name.decode()
        before = model.get(path)
        if verb == "unlink":
            try:
                volume.unlink(ROOT_NODE, name)
                failed = 0
            except OSError as error:
                failed = error.errno
            if not failed:
                assert model.pop(path) is not None
            assert failed in (0, errno.ENOENT, errno.ENOTSUP)
            assert (failed == errno.ENOENT) is (before is None)
        else:
            wanted = (before or b"") + data if verb == "append" else data
            failed = save(volume, name, wanted)
            if not failed:
                model[path] = wanted
            assert failed in (0, errno.EEXIST, errno.EILSEQ, errno.EIO), errno.errorcode.get(failed)
            if failed == errno.EEXIST:
                assert before is not None and not options["replaces"]
                assert options["verbs"] == () or (options["verbs"] == ("edit",) and not before), "it can be replaced"
            if failed in (errno.EILSEQ, errno.EIO):
                model = {
                    path: content.encode() for path, content in backend.files.items()
                }  # written, and not read back
                assert model.get(path) in (before, wanted)
        assert {path: content.encode() for path, content in backend.files.items()} == model
        for path, content in model.items():
            assert load(volume, path[1:].encode()) in (content, errno.EIO)
