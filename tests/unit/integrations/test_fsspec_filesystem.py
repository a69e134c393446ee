"""`fusebackend://` of fsspec, on a composite that nobody has mounted: fsspec's own suite, and what it leaves out."""

from __future__ import annotations

import errno
import io
import json
import pickle
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import fsspec
import fsspec.tests.abstract as abstract
import served

from fusebackend.control.client.client import Client
from fusebackend.integrations.fsspec_filesystem import BLOCK_BYTES, FusebackendFileSystem
from fusebackend.testing.posix.case import refused

CONFIG = """
default = "memory:"
[routes]
"/kept/" = "sqlite:agent.db"
"/way/dir/" = "dir:project"
[[views.reader.rules]]
operations = ["write"]
paths = ["/**"]
mode = "deny"
"""

ROUTES = ("/kept", "/way/dir")
"""Where files are is the backends' own matter; of these one has versions that count, and one times."""

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(scope="module", autouse=True)
def known() -> None:
    """An installation has an entry point for it; a checkout that was installed before it may have none."""
    fsspec.register_implementation("fusebackend", FusebackendFileSystem, clobber=True)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        served.homes(patch, tmp_path_factory.mktemp("x"))
        directory = tmp_path_factory.mktemp("config")
        (directory / "project").mkdir()
        path = directory / "agent.toml"
        path.write_text(CONFIG)
        with served.served("--config", str(path), place=str(path)):
            yield str(path)


def opened(**options: Any) -> FusebackendFileSystem:
    return fsspec.filesystem("fusebackend", skip_instance_cache=True, **options)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shared(config: str) -> Iterator[FusebackendFileSystem]:
    fs = opened(config=config)
    yield fs
    fs.close()


@pytest.fixture
def fs(shared: FusebackendFileSystem) -> FusebackendFileSystem:
    return shared


@pytest.fixture
def files(fs: FusebackendFileSystem) -> Client:
    return fs.client


@pytest.fixture(params=ROUTES)
def top(request: pytest.FixtureRequest) -> str:
    """A name that nothing has, in each route."""
    return f"{request.param}/{uuid.uuid4().hex}"


class Suite(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(scope="module")
    @classmethod
    def fs(cls, shared: FusebackendFileSystem) -> FusebackendFileSystem:
        return shared

    @pytest.fixture
    def fs_path(self, shared: FusebackendFileSystem) -> str:
        path = f"/kept/{uuid.uuid4().hex}"
        shared.mkdir(path)
        return path


class TestOfFsspec(
    abstract.AbstractGetTests, abstract.AbstractPutTests, abstract.AbstractOpenTests, abstract.AbstractPipeTests, Suite,
):  # fmt: skip  # type: ignore[misc]
    """fsspec's own."""


@pytest.mark.night
class TestCopies(abstract.AbstractCopyTests, Suite):  # type: ignore[misc]
    """What is copied is found by the same walk as what is put and got; `test_names` copies by day."""


# -- looking -------------------------------------------------------------------------------------------------------


def test_what_is_there(fs: FusebackendFileSystem, top: str) -> None:
    fs.pipe(f"{top}/d/a.txt", b"four")
    fs.touch(f"{top}/b.csv")
    for found, expected in [
        (fs.ls(top, detail=False), ["b.csv", "d"]),
        (fs.ls(f"{top}/b.csv", detail=False), ["b.csv"]),
        (fs.find(f"fusebackend://{top}"), ["b.csv", "d/a.txt"]),
        (fs.glob(f"{top}/**/*.txt"), ["d/a.txt"]),
    ]:
        assert found == [f"{top}/{name}" for name in expected]
    info = fs.info(f"fusebackend://{top}/d/a.txt")
    assert (info["name"], info["type"], info["size"]) == (f"{top}/d/a.txt", "file", 4)
    assert fs.isdir(f"{top}/d") and not fs.exists(f"{top}/none") and fs.du(top) == 4
    for call in (fs.info, fs.ls, fs.cat_file, fs.rm, fs.rm_file, fs.rmdir, fs.modified, fs.open):
        refused(errno.ENOENT, call, f"{top}/none")
    with pytest.raises(OSError, match="climbs above"):
        fs.info("/../x")


def test_directories_that_only_routes_make(fs: FusebackendFileSystem) -> None:
    assert "/way" in fs.ls("/", detail=False) and fs.ls("/way", detail=False) == ["/way/dir"]
    with pytest.raises(OSError, match="has no times"):
        fs.modified("/way")
    refused(errno.EEXIST, fs.mkdir, "/way")
    for path in ("/way", "/way/dir", "/kept"):
        refused(errno.EBUSY, fs.rmdir, path)
    fs.mkdir("/way/new", create_parents=False)
    fs.rmdir("/way/new")


def test_times_and_versions(fs: FusebackendFileSystem, top: str) -> None:
    fs.pipe(top, b"one")
    seen, sum_before = fs.ukey(top), fs.checksum(top)
    assert (fs.ukey(top), fs.checksum(top)) == (seen, sum_before)
    assert fs.modified(top) <= fs.created(top)
    fs.pipe(top, b"two")
    assert fs.ukey(top) != seen and fs.checksum(top) != sum_before
    for truncate, content in ((False, b"two"), (True, b"")):
        fs.touch(top, truncate=truncate)
        assert fs.cat(top) == content


def test_links_are_followed_and_no_walk_is_endless(fs: FusebackendFileSystem, config: str) -> None:
    project = Path(config).parent / "project/links"
    project.mkdir()
    (project / "file").write_text("linked")
    for name, target in (("to_file", "file"), ("to_top", "."), ("to_none", "none")):
        (project / name).symlink_to(target)
    top = "/way/dir/links"
    assert fs.cat(f"{top}/to_file") == b"linked" and fs.info(f"{top}/to_file")["destination"] == "file"
    assert fs.isdir(f"{top}/to_top") and fs.islink(f"{top}/to_none") and not fs.isfile(f"{top}/to_none")
    assert [info["type"] for info in fs.ls(top)] == ["file", "file", "other", "other"]
    assert len(fs.find(top)) == 4


# -- reading -------------------------------------------------------------------------------------------------------


def test_ranges(fs: FusebackendFileSystem, top: str) -> None:
    content = b"".join(number.to_bytes(4) for number in range((2 * BLOCK_BYTES + 77) // 4))
    fs.pipe(top, content)
    assert fs.cat_file(top, start=-5) == content[-5:]
    assert fs.cat_ranges([top, top], [3, BLOCK_BYTES - 2], [9, BLOCK_BYTES + 3]) == [
        content[3:9],
        content[BLOCK_BYTES - 2 : BLOCK_BYTES + 3],
    ]
    with fs.open(top, "rb", cache_type="none") as file:
        assert file.read() == content
        file.seek(BLOCK_BYTES + 1)
        assert file.read(10) == content[BLOCK_BYTES + 1 : BLOCK_BYTES + 11]
    refused(errno.EISDIR, fs.client.read_range, "/kept", 0, 1)
    with pytest.raises(ValueError, match="size"):
        fs.client.read_range(top, 0, 1 << 30)


def test_a_range_is_all_that_is_loaded(fs: FusebackendFileSystem, config: str) -> None:
    size = 1 << 30
    with (Path(config).parent / "project/sparse").open("wb") as file:
        file.seek(size - 4096)
        file.write(b"z" * 4096)
    asked, read = [], fs.client.read_range
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs.client, "read_range", lambda *range_: asked.append(range_[2]) or read(*range_))
        with fs.open("/way/dir/sparse") as opened_file:
            opened_file.seek(size - 4096)
            assert opened_file.read(4096) == b"z" * 4096
    assert sum(asked) <= BLOCK_BYTES


def test_no_read_mixes_two_versions(fs: FusebackendFileSystem, top: str) -> None:
    fs.pipe(top, b"a" * (BLOCK_BYTES + 10))
    with fs.open(top, cache_type="none") as file:
        assert file.read(4) == b"aaaa"
        fs.pipe(top, b"b" * (BLOCK_BYTES + 10))
        with pytest.raises(OSError, match="changed since it was opened") as caught:
            file.read(4)
    assert caught.value.errno == errno.ESTALE


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_file_changes_when_it_is_closed(fs: FusebackendFileSystem, top: str) -> None:
    fs.pipe(top, b"before")
    with fs.open(top, "wb") as file:
        file.write(b"after " * 100)
        file.seek(0)
        file.write(b"AFTER")
        file.flush()
        assert fs.cat(top) == b"before"
    assert fs.cat(top).startswith(b"AFTER after ")
    with pytest.raises(ZeroDivisionError), fs.open(top, "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert fs.cat(top).startswith(b"AFTER")


def test_appending_keeps_what_others_append(fs: FusebackendFileSystem, top: str) -> None:
    with fs.open(top, "a") as mine, fs.open(top, "ab") as others:
        mine.write("mine\n")
        others.write(b"others\n")
    assert sorted(fs.cat(top).splitlines()) == [b"mine", b"others"]
    with fs.open(top, "ab") as file:
        assert file.tell() == 12
        file.write(b"x" * (3 << 20))
        assert not file.seekable()
    assert fs.size(top) == 12 + (3 << 20)
    refused(errno.EISDIR, fs.client.append, "/kept", [b"x"])


def test_only_what_is_absent_is_created(fs: FusebackendFileSystem, top: str) -> None:
    first, second = fs.open(top, "xb"), fs.open(top, "xb")
    first.write(b"\x00first")
    second.write(b"second")
    first.close()
    refused(errno.EEXIST, second.close)
    assert fs.cat(top) == b"\x00first"
    with pytest.raises(ValueError, match=r"r\+b"):
        fs.open(top, "r+b")


def test_a_transaction_stores_all_or_nothing(fs: FusebackendFileSystem, top: str) -> None:
    fs.pipe(f"{top}/a", b"old")

    def write() -> None:
        for name in "ab":
            with fs.open(f"{top}/{name}", "wb") as file:
                file.write(b"new")

    with pytest.raises(ZeroDivisionError), fs.transaction:
        write()
        raise ZeroDivisionError
    assert fs.cat([f"{top}/a"]) == {f"{top}/a": b"old"} and not fs.exists(f"{top}/b")
    with fs.transaction:
        write()
        assert fs.cat(f"{top}/a") == b"old"
    assert fs.cat([f"{top}/a", f"{top}/b"]) == {f"{top}/a": b"new", f"{top}/b": b"new"}


def test_names(fs: FusebackendFileSystem, top: str) -> None:
    fs.makedirs(f"{top}/d/e")
    fs.makedirs(f"{top}/d/e", exist_ok=True)
    refused(errno.EEXIST, fs.makedirs, f"{top}/d/e")
    refused(errno.ENOENT, fs.mkdir, f"{top}/no/way", create_parents=False)
    fs.pipe(f"{top}/d/e/f", b"moved")
    refused(errno.ENOTEMPTY, fs.rmdir, f"{top}/d/e")
    refused(errno.EISDIR, fs.rm, f"{top}/d")
    fs.mv(f"{top}/d", f"{top}/new")
    fs.pipe(f"{top}/over", b"old")
    fs.mv(f"{top}/new/e/f", f"{top}/over")
    assert fs.find(top) == [f"{top}/over"] and fs.cat(f"{top}/over") == b"moved"
    fs.cp_file(f"{top}/over", f"{top}/copied")
    fs.rm([f"{top}/over", f"{top}/new"], recursive=True)
    assert fs.ls(top, detail=False) == [f"{top}/copied"]
    fs.rm(top, recursive=True, maxdepth=3)
    assert not fs.exists(top)
    with pytest.raises(NotADirectoryError):
        fs.pipe(top, b"x")
        fs.mkdir(f"{top}/below")


def test_a_name_that_is_there_is_no_glob(fs: FusebackendFileSystem, top: str, tmp_path: Path) -> None:
    """But one that is not there is, as everywhere in fsspec."""
    names = ("file[1].txt", "file1.txt", "a*", "ab", "d[x]/in", "dx/in", "q?", "qq")
    fs.pipe({f"{top}/{name}": name.encode() for name in names})
    assert fs.cat(f"{top}/file[1].txt") == b"file[1].txt"
    fs.get(f"{top}/file[1].txt", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file[1].txt"]
    fs.mv(f"{top}/q?", f"{top}/moved")
    fs.copy(f"{top}/a*", f"{top}/copy/")
    fs.rm(f"{top}/file[1].txt")
    fs.rm(f"{top}/d[x]", recursive=True)
    fs.rm([f"{top}/a*"], recursive=True, maxdepth=2)
    left = [f"{top}/{name}" for name in ("ab", "copy/a*", "dx/in", "file1.txt", "moved", "qq")]
    assert fs.find(top) == left and fs.cat(f"{top}/moved") == b"q?"
    fs.rm(f"{top}/file[1].txt")
    assert fs.find(top) == [name for name in left if "file" not in name]
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{top}/file[1].txt")


def test_each_change_is_in_the_log_and_can_be_undone(config: str) -> None:
    fs = opened(config=config, agent="pandas", thread="t1")
    fs.mkdir("/kept/logged/deep")
    fs.pipe("/kept/logged/file", b"one\n")
    with fs.open("/kept/logged/file", "ab") as file:
        file.write(b"two\n")
    fs.rmdir("/kept/logged/deep")
    log = fs.client.log(by="pandas")
    assert [call.title.split()[0] for call in log] == ["remove_directory", "append", "upload_files", "make_directory"]
    assert log[0].actor.thread == "t1"
    for expected, content in ((["deep", "file"], b"one\ntwo\n"), (["deep", "file"], b"one\n"), (["deep"], None)):
        fs.client.undo(by="pandas")
        assert [path.rpartition("/")[2] for path in fs.ls("/kept/logged", detail=False)] == expected
        assert content is None or fs.cat("/kept/logged/file") == content
    fs.client.undo(by="pandas")
    assert not fs.exists("/kept/logged")
    fs.close()


def test_a_view_and_a_snapshot(fs: FusebackendFileSystem, files: Client, config: str) -> None:
    fs.pipe("/kept/seen", b"now")
    viewed = opened(config=config, view="reader")
    assert viewed.cat("/kept/seen") == b"now" and viewed.open("/kept/seen").read(2) == b"no"
    for change in (
        lambda: viewed.pipe("/kept/seen", b"x"),
        lambda: viewed.client.append("/kept/seen", [b"x"]),
        lambda: viewed.mkdir("/kept/directory"),
        lambda: viewed.rm("/kept/seen"),
    ):
        with pytest.raises(OSError):
            change()
    files.create_snapshot("taken")
    fs.pipe("/kept/seen", b"later")
    with fs.open("/.fusebackend/snapshots/taken/kept/seen") as file:
        assert file.read() == b"now"
    refused(errno.EROFS, fs.mkdir, "/.fusebackend/snapshots/taken/kept/directory")
    assert fs.cat("/kept/seen") == b"later"
    viewed.close()


# -- finding the server --------------------------------------------------------------------------------------------


def test_how_it_is_found(fs: FusebackendFileSystem, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusebackend.control import rendezvous

    fs.pipe("/found", b"here")
    server = rendezvous.server_of(config)
    by_socket = opened(socket=server.socket)
    copied = pickle.loads(pickle.dumps(by_socket))
    assert by_socket.cat("/found") == copied.cat("/found") == b"here"
    assert json.loads(by_socket.to_json())["socket"] == server.socket
    monkeypatch.setenv("FUSEBACKEND_MOUNT", config)
    by_variable = fsspec.filesystem("fusebackend")
    with fsspec.open("fusebackend:///found", "rt") as file:
        assert file.read() == "here"
    monkeypatch.delenv("FUSEBACKEND_MOUNT")
    with pytest.raises(OSError, match="say which mount"):
        by_variable.cat("/found")
    with pytest.raises(ValueError, match="one of mount, socket and config"):
        opened(mount="/mnt", socket="/s")
    for each in (by_socket, by_variable, copied):
        each.close()


def test_it_is_registered() -> None:
    specs = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["fsspec.specs"]
    module, _, name = specs["fusebackend"].partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is FusebackendFileSystem


# -- libraries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", ["/kept"], indirect=True)  # routes differ in nothing that the library sees
def test_pandas(config: str, top: str) -> None:
    pandas = pytest.importorskip("pandas")
    options = {"config": config}
    frame = pandas.DataFrame({"n": range(1000), "word": ["a", "b"] * 500})
    for end, write, read in (
        ("csv", frame.to_csv, pandas.read_csv),
        ("jsonl", frame.to_json, pandas.read_json),
        ("pickle", frame.to_pickle, pandas.read_pickle),
    ):
        words: dict[str, Any] = {"csv": {"index": False}, "jsonl": {"orient": "records", "lines": True}}.get(end, {})
        write(f"fusebackend://{top}.{end}", storage_options=options, **words)
        words.pop("index", None)
        assert read(f"fusebackend://{top}.{end}", storage_options=options, **words).equals(frame), end
    pytest.importorskip("pyarrow")
    frame.to_parquet(f"fusebackend://{top}.parquet", storage_options=options)
    found = pandas.read_parquet(f"fusebackend://{top}.parquet", storage_options=options, columns=["n"])
    assert found.equals(frame[["n"]])
    frame.to_csv(f"fusebackend://{top}.csv", mode="a", header=False, index=False, storage_options=options)
    assert len(pandas.read_csv(f"fusebackend://{top}.csv", storage_options=options)) == 2000


@pytest.mark.parametrize("top", ["/kept"], indirect=True)  # routes differ in nothing that the library sees
def test_pyarrow(fs: FusebackendFileSystem, top: str) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.fs
    import pyarrow.parquet

    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    table = pyarrow.table({"year": [2024, 2025, 2025], "n": [1, 2, 3]})
    pyarrow.parquet.write_to_dataset(table, top, partition_cols=["year"], filesystem=arrow)
    found = pyarrow.dataset.dataset(top, filesystem=arrow, partitioning="hive")
    assert found.to_table(filter=pyarrow.dataset.field("year") == 2025)["n"].to_pylist() == [2, 3]
    assert arrow.get_file_info(top).type == pyarrow.fs.FileType.Directory
    with arrow.open_output_stream(f"{top}/raw") as stream:
        stream.write(b"bytes")
    with arrow.open_input_file(f"{top}/raw") as file:
        assert file.read_at(3, 1) == b"yte"
    arrow.delete_dir(top)
    assert not fs.exists(top)


@pytest.mark.parametrize("top", ["/kept"], indirect=True)  # routes differ in nothing that the library sees
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # dask's own calls of pandas
def test_dask(config: str, top: str) -> None:
    pytest.importorskip("dask")
    pytest.importorskip("pandas")
    import dask.bag
    import dask.dataframe
    import pandas

    options = {"config": config}
    with dask.config.set(scheduler="threads", num_workers=2):
        lines = dask.bag.from_sequence([f"line {number}" for number in range(100)], npartitions=4)
        lines.to_textfiles(f"fusebackend://{top}/*.txt", storage_options=options)
        found = dask.bag.read_text(f"fusebackend://{top}/*.txt", storage_options=options)
        assert found.count().compute() == 100
        pytest.importorskip("pyarrow")
        frame = dask.dataframe.from_pandas(pandas.DataFrame({"n": range(100)}), npartitions=3)
        frame.to_parquet(f"fusebackend://{top}/frame", storage_options=options)
        read = dask.dataframe.read_parquet(f"fusebackend://{top}/frame", storage_options=options)
        assert read["n"].sum().compute() == 4950


def test_a_zip_file_and_a_text_file(fs: FusebackendFileSystem, top: str) -> None:
    import zipfile

    with fs.open(f"{top}.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("in.txt", "zipped")
    with fs.open(f"{top}.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("in.txt") == b"zipped"
    with fs.open(f"{top}.gz", "wt", compression="infer") as text:
        text.write("compressed")
    assert io.TextIOWrapper(fs.open(f"{top}.gz", compression="gzip")).read() == "compressed"


def test_a_text_is_stored_whole_or_not_at_all(fs: FusebackendFileSystem, top: str) -> None:
    path = f"{top}/text"
    with fs.open(path, "w", encoding="latin-1", newline="\r\n") as file:
        file.write("ä\n")
    assert fs.cat(path) == b"\xe4\r\n"
    for mode in ("w", "wt", "at"):
        with pytest.raises(KeyError), fs.open(path, mode) as file:
            file.write("a part\n" * 10_000)
            raise KeyError
        assert file.closed and fs.cat(path) == b"\xe4\r\n"
    with fs.open(path, "a", encoding="latin-1") as file:
        file.write("more")
    assert fs.cat(path) == b"\xe4\r\nmore"
    refused(errno.EEXIST, fs.open, path, "xt")
    assert fs.read_text(path, encoding="latin-1") == "ä\nmore"


def test_a_file_is_put_in_one_call(fs: FusebackendFileSystem, top: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x" * (BLOCK_BYTES + 5))
    told = fsspec.callbacks.Callback()
    fs.put_file(str(local), f"{top}/new/below", callback=told)
    assert fs.cat(f"{top}/new/below") == local.read_bytes()
    assert (told.size, told.value) == (BLOCK_BYTES + 5, BLOCK_BYTES + 5)
    refused(errno.EEXIST, fs.put_file, str(local), f"{top}/new/below", mode="create")
    refused(errno.EISDIR, fs.put_file, str(local), f"{top}/new")
