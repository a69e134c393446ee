"""Backend URLs: what is accepted, what is refused and in which words, what is hidden."""

import contextlib
import re
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from for_each import for_each
from raising import raising

from fusebackend import urls
from fusebackend.protocol import SandboxBackendProtocol, SnapshotVolume
from fusebackend.protocol.scheme import Parameter
from fusebackend.remote.volume import volume_of
from fusebackend.urls import SCHEMES, Scheme, Url, UrlError, mask, meanings, open_backend, parse

DOCS = Path(__file__).parents[3] / "docs"


class TestParse:
    @for_each(
        ("text", "scheme", "rest"),
        [
            ("sqlite:/data/notes.db", "sqlite", "/data/notes.db"),
            ("SQLite:/data/notes.db", "sqlite", "/data/notes.db"),
            ("sqlite:///data/notes.db", "sqlite", "/data/notes.db"),
            ("dir:/data/../srv//x/", "dir", "/srv/x"),
            ("dir:/data/a%20b%3Fc", "dir", "/data/a b?c"),
            ("dir:/data/100%", "dir", "/data/100%"),
            ("dir:/데이터/数据", "dir", "/데이터/数据"),
            ("dir:/data/a:b@c#d", "dir", "/data/a:b@c#d"),
            ("memory:", "memory", ""),
            ("python:my.module:make", "python", "my.module:make"),
        ],
    )
    def test_scheme_and_rest(self, text: str, scheme: str, rest: str) -> None:
        url = parse(text)
        assert (url.scheme, url.rest) == (scheme, rest)

    def test_a_relative_path_starts_from_the_current_directory(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        url = parse("sqlite:sub/../notes.db")
        monkeypatch.chdir("/")
        assert url.rest == f"{tmp_path}/notes.db"
        assert parse(url.text) == url

    def test_a_relative_path_starts_from_the_base_that_is_given(self) -> None:
        assert parse("dir:notes", base="/srv/agent").rest == "/srv/agent/notes"
        assert parse("dir:/notes", base="/srv/agent").rest == "/notes"

    def test_a_tilde_is_the_home_directory(self, monkeypatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        assert parse("dir:~/notes").rest == "/home/someone/notes"
        assert parse("dir:x/~").rest.endswith("/x/~")

    @for_each("path", ["/a b", "/a%41", "/100%", "/q?x=1", "/h#1", "/new\nline", "/raw\udcff", "/데"])
    def test_the_text_of_any_path_means_that_path(self, path: str) -> None:
        url = urls.for_path("dir", path)
        assert parse(url.text) == url
        assert "\n" not in url.text
        assert url.text.isprintable()

    def test_parameters_are_read(self) -> None:
        url = parse("dir:/x?max_file_size_mb=50&on_exists=replace")
        assert url.parameters == {"max_file_size_mb": 50, "on_exists": "replace"}
        assert parse(url.text) == url

    def test_what_libpq_knows_is_passed_on(self) -> None:
        url = parse("store+postgres:postgresql://me:pw@h/db?sslmode=require&ns=a.b&password=x%26y")
        assert url.parameters == {"sslmode": "require", "ns": ("a", "b"), "password": "x&y"}
        assert url.masked == "store+postgres:postgresql://me:***@h/db?sslmode=require&ns=a.b&password=***"

    def test_a_python_url_passes_all_parameters_on(self) -> None:
        assert parse("python:m:f?bucket=a%26b&region=eu+west").parameters == {"bucket": "a&b", "region": "eu+west"}

    @for_each(
        ("text", "message"),
        [
            ("", "'' has no scheme; write it as one of sqlite:PATH, memory:, dir:PATH, "),
            ("/data/notes.db", "'/data/notes.db' has no scheme; write it as one of sqlite:PATH, "),
            ("nope:/x", "'nope:/x': unknown scheme 'nope:'; known: sqlite:, memory:, dir:, shell:, state:, "),
            ("nope://u:pw@h/x", "'nope://u:***@h/x': unknown scheme 'nope:'; known: "),
            ("sqlite:", "'sqlite:' is incomplete; write sqlite:PATH"),
            ("sqlite:?on_exists=error", "'sqlite:?on_exists=error' is incomplete; write sqlite:PATH"),
            ("memory:x", "'memory:x': nothing may follow 'memory:'"),
            ("sqlite://host/x", "'sqlite://host/x' names a host; write a path directly after the colon"),
            ("dir:/a%00b", "'dir:/a%00b': a path can't hold a NUL"),
            ("sqlite:/x?colour=red", "'sqlite:' knows no parameter 'colour'; known: limit_bytes, limit_files, "),
            ("memory:?limit_bytes=1%20X", "'limit_bytes' of 'memory:' must be a size above 0 (bytes, or for example"),
            ("memory:?limit_bytes=0", "parameter 'limit_bytes' of 'memory:' must be a size above 0"),
            ("memory:?limit_files=-1", "parameter 'limit_files' of 'memory:' must be a whole number above 0, not '-1'"),
            ("dir:/x?limit_bytes=1GiB", "'dir:' takes no 'limit_bytes': other programs can change what is there"),
            ("s3://b?limit_files=1", "'s3:' takes no 'limit_files': other programs can change what is there"),
            ("sqlite:/x?on_exists", "parameter 'on_exists' of 'sqlite:' has no value; write on_exists=VALUE"),
            ("memory:?on_exists=no", "parameter 'on_exists' of 'memory:' must be 'error' or 'replace', not 'no'"),
            ("sqlite:/x?on_exists=error&on_exists=error", "parameter 'on_exists' of 'sqlite:' is given twice"),
            ("shell:/x?timeout=0", "parameter 'timeout' of 'shell:' must be a whole number above 0, not '0'"),
            ("dir:/x?max_file_size_mb=-1", "must be a whole number above 0, not '-1'"),
            ("dir:/x?max_file_size_mb=1e3", "must be a whole number above 0, not '1e3'"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_one_line(self, text: str, message: str) -> None:
        with pytest.raises(UrlError) as refusal:
            parse(text)
        assert message in str(refusal.value)
        assert "\n" not in str(refusal.value)


class TestMask:
    @for_each(
        ("text", "shown"),
        [
            ("sqlite:/data/notes.db", "sqlite:/data/notes.db"),
            ("postgres:postgresql://me:secret@host/db", "postgres:postgresql://me:***@host/db"),
            ("postgres:postgresql://me@host:5432/db", "postgres:postgresql://me@host:5432/db"),
            ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
            ("postgresql://me:p@ss/w?rd@host/db", "postgresql://me:***@host/db"),
            ("postgres:host=h user=u password=secret dbname=d", "postgres:host=h user=u password=*** dbname=d"),
            ("postgres:host=h password='a b\\' c' dbname=d", "postgres:host=h password=*** dbname=d"),
            ("postgres:host=h password = secret", "postgres:host=h password = ***"),
            ("s3://b/p?access_key=AK&secret_key=SK&region=r", "s3://b/p?access_key=***&secret_key=***&region=r"),
            ("s3://b/p?SessionToken=T&endpoint=http://u:p@h", "s3://b/p?SessionToken=***&endpoint=http://u:***@h"),
            ("python:m:f?p%61ssword=x&n=1", "python:m:f?p%61ssword=***&n=1"),
            ("dir:/x?on_exists=replace&max_file_size_mb=5", "dir:/x?on_exists=replace&max_file_size_mb=5"),
            ("python:m:f?password=", "python:m:f?password="),
            ("postgres:host=h?feed=host%3Dd%20password%3Dsecret", "postgres:host=h?feed=***"),
            ("postgres:host=h?feed=postgresql%3A%2F%2Fme:secret%40d", "postgres:host=h?feed=***"),
            ("postgres:host=h?feed=host%3Dd%20dbname%3Dx", "postgres:host=h?feed=host%3Dd%20dbname%3Dx"),
        ],
    )
    def test_secrets_are_hidden_and_nothing_else(self, text: str, shown: str) -> None:
        assert mask(text) == shown

    def test_a_url_shows_itself_masked(self) -> None:
        assert parse("python:m:f?token=abc").masked == "python:m:f?token=***"

    def test_errors_do_not_give_secrets_away(self, monkeypatch) -> None:

        scheme = Scheme("lock:TEXT", "", open, parameters={"key": raising(ValueError("must be a number"))})
        monkeypatch.setitem(SCHEMES, "lock", scheme)
        with pytest.raises(UrlError) as refusal:
            parse("lock:x?key=hidden")
        assert str(refusal.value) == "parameter 'key' of 'lock:' must be a number, not '***'"


ELSEWHERE = ("az", "docker", "gs", "postgres", "python", "s3", "store+postgres", "threads+postgres")
"""Schemes of which there is nothing to open on every machine."""


def url_for(name: str, directory: Path) -> str:
    """A URL of that scheme which opens."""
    if name == "sqlite":
        return f"sqlite:{directory}/x.db"
    if name == "fsspec":
        return f"fsspec:file://{directory}"
    if name == "store+sqlite":
        return f"store+sqlite:{directory}/x.db?ns=files"
    if name == "threads+sqlite":
        with contextlib.closing(sqlite3.connect(directory / "threads.db")) as connection:
            connection.executescript(
                "CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,"
                " checkpoint, metadata);"
                "CREATE TABLE writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value);"
            )
        return f"threads+sqlite:{directory}/threads.db"
    return f"{name}:{directory if SCHEMES[name].takes == 'path' else ''}"


class TestOpen:
    def test_sqlite(self, tmp_path) -> None:
        from fusebackend.backends import SqliteBackend

        with contextlib.closing(open_backend(f"sqlite:{tmp_path}/notes.db?on_exists=replace")) as backend:
            assert isinstance(backend, SqliteBackend)
            assert backend.on_exists == "replace"
            assert backend.write("/a.txt", "a").error is None
        assert (tmp_path / "notes.db").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("scheme", ["dir", "shell"])
    def test_a_directory(self, tmp_path, scheme: str) -> None:
        (tmp_path / "here.txt").write_text("here")
        backend = open_backend(f"{scheme}:{tmp_path}?max_file_size_mb=1")
        assert [entry["path"] for entry in backend.ls("/").entries] == ["/here.txt"]
        assert backend.virtual_mode is True
        assert backend.read("/../../etc/passwd").error

    @for_each(
        ("url", "error"),
        [
            ("sqlite:{0}/no/notes.db", "there is no directory '{0}/no'"),
            ("sqlite:{0}", "not a regular file"),
            ("dir:{0}/no", "there is no directory '{0}/no'"),
            ("dir:{0}/file", "is not a directory"),
            ("shell:{0}/no", "there is no directory '{0}/no'"),
            ("shell:{0}/file", "is not a directory"),
        ],
    )
    def test_what_can_not_be_opened_is_named(self, tmp_path, url: str, error: str) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises((UrlError, OSError), match=error.format(tmp_path)):
            open_backend(url.format(tmp_path))

    @for_each("name", [name for name in SCHEMES if name not in ELSEWHERE])
    def test_the_table_is_true(self, name: str, tmp_path) -> None:
        scheme, backend = SCHEMES[name], open_backend(url_for(name, tmp_path))
        try:
            assert isinstance(backend, SandboxBackendProtocol) == scheme.execute
            if scheme.features:
                volume = volume_of(backend)
                assert asdict(volume.features) == asdict(scheme.features)
                assert isinstance(volume, SnapshotVolume) == scheme.snapshots
        finally:
            getattr(backend, "close", lambda: None)()

    def test_postgres_keeps_snapshots(self) -> None:
        from fusebackend.backends.postgres.volume import PostgresVolume

        assert issubclass(PostgresVolume, SnapshotVolume) and SCHEMES["postgres"].snapshots


class TestPython:
    @pytest.fixture(autouse=True)
    def a_module_in_the_current_directory(self, tmp_path, monkeypatch) -> None:
        (tmp_path / "urls_test_module.py").write_text(
            "from fusebackend.backends import InMemoryBackend\n"
            "ready = InMemoryBackend()\n"
            "class shelf:\n"
            "    make = staticmethod(lambda: InMemoryBackend())\n"
            "def make(on_exists='error'):\n"
            "    return InMemoryBackend(on_exists=on_exists)\n"
            "def number(): return 7\n"
            "def broken(): raise RuntimeError('no\\nluck')\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        yield
        sys.modules.pop("urls_test_module", None)

    def test_a_factory_is_called_with_the_parameters(self) -> None:
        assert open_backend("python:urls_test_module:make?on_exists=replace").on_exists == "replace"
        assert open_backend("python:urls_test_module:shelf.make").on_exists == "error"

    def test_a_backend_is_used_as_it_is(self) -> None:
        assert open_backend("python:urls_test_module:ready") is sys.modules["urls_test_module"].ready

    def test_the_current_directory_comes_last(self, tmp_path) -> None:
        open_backend("python:urls_test_module:ready")
        assert sys.path[-1] == str(tmp_path)

    @pytest.mark.parametrize(
        ("rest", "message"),
        [
            ("urls_test_module", "is incomplete; write python:package.module:callable"),
            ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'"),
            ("urls_test_module:nothing", "AttributeError"),
            ("urls_test_module:number", "gave a int, which is no backend"),
            ("urls_test_module:broken", "failed: RuntimeError: no"),
            ("urls_test_module:make?colour=red", "failed: TypeError"),
        ],
    )
    def test_what_goes_wrong_is_named(self, rest: str, message: str) -> None:
        with pytest.raises(UrlError) as refusal:
            open_backend(f"python:{rest}")
        assert message in str(refusal.value)


class _Entry:
    """An entry point of another package."""

    def __init__(self, name: str, loaded: object) -> None:
        self.name = name
        self.value = f"their.package:{name}"
        self._loaded = loaded

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


class TestEntryPoints:
    @pytest.fixture(autouse=True)
    def other_packages(self, monkeypatch) -> None:
        opened: list[Url] = []
        good = Scheme("attic:SHELF", "old things", lambda url: opened.append(url) or "the attic")
        entries = [
            _Entry("attic", good),
            _Entry("broken", ImportError("no module named shelf")),
            _Entry("odd", object()),
            _Entry("sqlite", good),
        ]

        def entry_points(group: str) -> list[_Entry]:
            assert group == "fusebackend.backends"
            return entries

        monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
        self.opened = opened

    def test_a_scheme_of_another_package_opens(self) -> None:
        assert open_backend("attic:upper") == "the attic"
        assert self.opened == [Url("attic", "upper", {}, "attic:upper")]

    def test_one_that_cannot_be_loaded_is_an_error_only_when_used(self) -> None:
        with pytest.raises(UrlError, match="the package that adds 'broken:' can't be loaded: no module named shelf"):
            parse("broken:x")
        with pytest.raises(UrlError, match=r"is no fusebackend\.urls\.Scheme"):
            parse("odd:x")

    def test_our_own_schemes_cannot_be_replaced(self) -> None:
        assert urls.scheme_table()["sqlite"] is SCHEMES["sqlite"]

    def test_they_are_listed_among_the_known(self) -> None:
        with pytest.raises(UrlError, match="python:, attic:, broken:, odd:"):
            parse("nope:x")


def test_every_parameter_is_explained() -> None:
    for scheme in SCHEMES.values():
        assert all(isinstance(read, Parameter) and read.meaning for read in (scheme.parameters or {}).values())


def test_the_page_of_a_backend_names_its_parameters() -> None:
    for name, (_, schemes) in meanings().items():
        for page in map(page_of, schemes):
            assert f"`{name}`" in page.read_text(), f"{page} does not name {name}"


def test_each_backend_has_a_page() -> None:
    pages = {page_of(scheme) for scheme in SCHEMES} | {DOCS / "backends/sandboxes.md"}
    assert pages == set((DOCS / "backends").iterdir())
    for page in pages:
        assert re.search(r"^```(sh|python)$", page.read_text(), re.MULTILINE), f"{page} has no example"


def page_of(scheme: str) -> Path:
    """The page to which the row of a scheme in docs/urls.md leads."""
    rows = re.findall(r"^\| \[(.*?)\]\((\S+)\) \|", (DOCS / "urls.md").read_text(), re.MULTILINE)
    (target,) = [target for urls_of, target in rows if re.search(rf"`{re.escape(scheme)}:", urls_of)]
    return DOCS / target


@pytest.mark.parametrize(
    ("text", "meant"),
    [("sqlit:x", "sqlite:PATH"), ("postgresql://h/d", "postgres:DSN?volume=NAME"), ("file:x", "dir:PATH")],
)
def test_a_scheme_that_may_have_been_meant(text: str, meant: str) -> None:
    with pytest.raises(UrlError, match=f"did you mean '{re.escape(meant)}'\\? known: sqlite:, "):
        parse(text)
