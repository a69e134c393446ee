"""Cases of paths: refused ones, equal ones, and the names that must work."""

from __future__ import annotations

import itertools
import os

import pytest

from fusebackend.protocol import AGENT_VERBS, ROOT_NODE, BackendProtocol, Caller
from fusebackend.testing.conformance.case import Case, Probe
from fusebackend.testing.each import each, needs

BAD_PATHS = {
    "empty": "",
    "above the root": "/../x",
    "above the root, further on": "/a/../../x",
    "home": "~/x",
    "NUL": "/a\0b",
    "a file as a directory": "/file.txt/x",
    "a lone surrogate": "/\ud800",
}

LONG_PATHS = {"a name of 256 bytes": "/" + "n" * 256, "256 bytes in 128 characters": "/" + "é" * 128,
              "a path of 4,097 bytes": "/" + "/".join(["n" * 127] * 32) + "n"}  # fmt: skip

NAMES = (
    "with space", " ", "new\nline", "tab\t", "quote'\"", "back\\slash", "*?[x]{a,b}", "-rf", "日本語", "naïve",
    "nai\u0308ve", "🎉", "...", ".hidden", "a..b", "%2e", "~tilde", "#", "colon:", "trailing.", "$(x)", "n" * 255,
)  # fmt: skip

NAMES_OF_BYTES = ("\udcff", "caf\udce9.txt", "日\udce6\udc97.txt")

LINKS = {
    "x": "secrets", "w": "x", "z": "secrets/k", "new": "secrets/made", "dots": "./secrets/../secrets/.", "loop": "loop",
    "out": "../etc", "absolute": "/secrets",
}  # fmt: skip

LED: dict[str, str | None] = {
    "/x": "/secrets", "/x/k": "/secrets/k", "/w/k": "/secrets/k", "/z": "/secrets/k", "/new": "/secrets/made",
    "/x/deep/er": "/secrets/deep/er", "/dots/k": "/secrets/k", "/loop": None, "/out": None, "/out/passwd": None,
    "/absolute/k": None, "/open/k": None,
}  # fmt: skip
"""Where paths lead by these links; None for nowhere."""

SPELLINGS = ("//{}//b.txt", "/{}/./b.txt", "/x/../{}/b.txt", "{}/b.txt", "/{}/b.txt/")
"""Ways to write the path `/{}/b.txt`."""


def call(b: Probe, verb: str, path: str) -> str | None:
    """Call a verb with a path; returns the error."""
    arguments: dict[str, tuple[object, ...]] = {
        "write": (path, "x"),
        "edit": (path, "old", "new"),
        "grep": ("pattern", path),
        "glob": ("*", path),
        "move": (path, "/moved.txt"),
        "upload_files": ([(path, b"x")],),
        "download_files": ([path],),
    }
    result = getattr(b, verb)(*arguments.get(verb, (path,)))
    error = (result[0] if isinstance(result, list) else result).error
    assert error is None or isinstance(error, str)
    return error


class NamingCases(Case):
    @needs("checks_paths")
    def test_a_bad_path_is_an_error_and_no_exception(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        for case in each(itertools.product(AGENT_VERBS, BAD_PATHS | LONG_PATHS)):
            with case as (verb, what):
                self.require(b.backend, ("limits_names",) if what in LONG_PATHS else ())
                if not getattr(self, f"supports_{verb}", True):
                    pytest.skip(f"no {verb}")
                error = call(b, verb, (BAD_PATHS | LONG_PATHS)[what])
                codes = {"invalid_path"}
                if what == "a file as a directory" and not self.keeps_empty_directories:
                    codes.add("file_not_found")
                if verb in ("upload_files", "download_files"):
                    assert error in codes
                elif verb not in ("grep", "glob") or len(codes) == 1:
                    assert error
                assert b.names() == ["/file.txt"]
                assert b.bytes_of("/file.txt") == b"old"

    @needs("checks_paths", "supports_move")
    def test_nothing_moves_to_a_bad_path(self, b: Probe) -> None:
        b.put("/file.txt", "old")
        b.put("/moving.txt", "x")
        for case in each(BAD_PATHS):
            with case as path:
                assert b.move("/moving.txt", path).error
                assert b.names() == ["/file.txt", "/moving.txt"]

    @needs("normalises_paths")
    def test_ways_to_write_one_path(self, b: Probe) -> None:
        for number, case in enumerate(each(SPELLINGS)):
            with case as spelling:
                self.require(b.backend, ("resolves_dot_dot",) if ".." in spelling else ())
                directory, before = f"a{number}", b.names("/")
                path = spelling.format(directory)
                b.put(path, "old")
                assert b.names(f"/{directory}") == [f"/{directory}/b.txt"]
                assert b.names("/") == [*before, f"/{directory}/"]
                assert "old" in b.read(path)
                assert b.edit(path, "old", "new").error is None
                assert b.bytes_of(f"/{directory}/b.txt") == b.bytes_of(path) == b"new"

    def test_real_paths_follow_every_link(self, b: Probe) -> None:
        """deepagents' rules are compared with them. A backend without links gives the paths back."""
        volume = getattr(b.backend, "volume", None)
        if not isinstance(b.backend, BackendProtocol) or getattr(b.backend, "virtual_mode", True) is False:
            pytest.skip("has no paths of its own")
        b.put("/secrets/k", "key")
        b.put("/open", "file")
        expected: dict[str, str | None] = {path: path for path in ("/", "/secrets/k", "/secrets", "/absent/x")}
        if volume is not None and volume.features.symlinks:
            for name, target in LINKS.items():
                volume.symlink(ROOT_NODE, name.encode(), target.encode(), Caller(os.getuid(), os.getgid(), 0))
            expected |= LED
        assert b.backend.real_paths(list(expected)) == list(expected.values())

    @needs("any_name")
    def test_a_name_may_be_anything(self, b: Probe) -> None:
        for number, case in enumerate(each(NAMES)):
            with case as name:
                self._round_trip(b, f"dir{number}", name)

    @needs("any_name")
    def test_a_name_may_be_bytes_that_are_no_text(self, b: Probe) -> None:
        volume = getattr(b.backend, "volume", None)
        for number, case in enumerate(each(NAMES_OF_BYTES)):
            with case as name:
                directory = f"dir{number}"
                self._round_trip(b, directory, name)
                b.put(f"/{directory}/{name}")
                if volume is not None:
                    entries = volume.readdir(volume.lookup(1, directory.encode()).node, b"", 10)
                    assert [entry for entry, _ in entries] == [name.encode("utf-8", "surrogateescape")]

    def _round_trip(self, b: Probe, directory: str, name: str) -> None:
        path = f"/{directory}/{name}"
        b.put(path, "the needle\n")
        assert b.names(f"/{directory}") == [path]
        assert "needle" in b.read(path)
        assert b.grepped("needle") == [(path, 1, "the needle")]
        assert b.globbed(f"**/{directory}/.*" if name.startswith(".") else f"{directory}/*") == [path]
        assert b.edit(path, "needle", "pin").error is None
        assert b.bytes_of(path) == b"the pin\n"
        if self.supports_move:
            assert b.move(path, f"/other/{name}").path == f"/other/{name}"
            path = f"/other/{name}"
        if self.supports_delete:
            assert b.delete(path).error is None
            assert not b.exists(path)
