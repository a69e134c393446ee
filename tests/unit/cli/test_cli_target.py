"""Which mount and which path a command line means, and how answers are shown in its words."""

from __future__ import annotations

import os

import pytest
from commands import MOUNT, commands, split
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from fusebackend.backends import InMemoryBackend
from fusebackend.base import paths
from fusebackend.base.paths import AgentPath
from fusebackend.cli.show import Failed
from fusebackend.cli.target import Target, here, in_words, locate


@pytest.fixture
def command(monkeypatch):
    with InMemoryBackend() as files, commands(files, monkeypatch) as command:
        yield command


@pytest.mark.usefixtures("command")
class TestLocate:
    @pytest.mark.parametrize("given", [MOUNT, MOUNT + "/", MOUNT + "//a", MOUNT + "/a/../b", MOUNT + "/a/"])
    def test_paths_of_the_mount(self, given):
        assert (locate(given, None).path, locate(given, None).given) == (split(given)[1], given)

    @pytest.mark.parametrize("given, path", [("/", "/"), ("/a", "/a"), ("a/b/", "/a/b"), ("/a/../b", "/b")])
    def test_paths_of_agents(self, given, path):
        assert locate(given, MOUNT).path == path

    def test_the_mount_may_be_given_by_any_path_in_it(self):
        assert locate("/a", f"{MOUNT}/some/where").path == "/a"

    def test_neither_kind_of_path_is_taken_for_the_other(self):
        assert locate(f"{MOUNT}/a", MOUNT).path == f"{MOUNT}/a"
        with pytest.raises(Failed) as caught:
            locate("/a", None)
        assert caught.value.message == (
            f"'/a' lies in no mount of fusebackend (mounted: {MOUNT}; "
            "with --mount DIR, paths are those that agents use)"
        )

    @pytest.mark.parametrize("given", ["/../a", "~/a"])
    def test_what_is_no_path_of_an_agent(self, given):
        with pytest.raises(Failed, match="Path traversal not allowed"):
            locate(given, MOUNT)

    @pytest.mark.parametrize("mount", [None, MOUNT])
    def test_an_empty_path(self, mount):
        with pytest.raises(Failed, match="a path is empty"):
            locate("", mount)

    def test_nothing_is_mounted(self, monkeypatch):
        monkeypatch.setattr("fusebackend.cli.target.mountpoints", list)
        with pytest.raises(Failed, match="'/a' lies in no mount of fusebackend; nothing is mounted"):
            locate("/a", None)
        with pytest.raises(Failed, match="nothing is mounted; 'fusebackend mount' does that"):
            here(None)

    def test_a_mount_that_does_not_exist(self, tmp_path):
        with pytest.raises(Failed) as caught:
            locate("/a", f"{tmp_path}/none")
        outside = f"'{tmp_path}/none' does not exist, so it lies in no mount of fusebackend"
        assert caught.value.message == f"{outside}; mounted: {MOUNT}"

    def test_links_to_a_mount_are_followed_or_not(self, tmp_path):
        link = tmp_path / "link"
        link.symlink_to(f"{MOUNT}/a")
        assert locate(str(link), None).path == "/a"
        assert locate(f"{link}/b", None).path == "/a/b"
        with pytest.raises(Failed, match="lies in no mount"):
            locate(str(link), None, follow=False)

    def test_a_current_directory_that_was_deleted(self, tmp_path, monkeypatch):
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert here(None).path == "/"


@pytest.mark.usefixtures("command")
class TestHere:
    def test_the_only_mount(self):
        assert (here(None).path, here(None).given) == ("/", MOUNT)
        assert here(None).shown("/a/b") == f"{MOUNT}/a/b"

    def test_the_current_directory(self, monkeypatch):
        monkeypatch.setattr(os, "getcwd", lambda: f"{MOUNT}/a")
        place = here(None)
        assert place.path == "/a"
        assert [place.shown(path) for path in ("/a", "/a/b", "/a/b/", "/c")] == [".", "b", "b/", f"{MOUNT}/c"]

    def test_the_mount_that_was_named(self):
        assert here(MOUNT).shown("/a/b") == "/a/b"

    def test_one_of_several(self, monkeypatch):
        monkeypatch.setattr("fusebackend.cli.target.mountpoints", lambda: ["/mnt/a", "/mnt/b"])
        with pytest.raises(Failed, match="several mounts are there: /mnt/a, /mnt/b; say which one with --mount"):
            here(None)
        with pytest.raises(Failed, match="say which one as MOUNTPOINT"):  # as of 'mcp', which has no --mount
            here(None, "as MOUNTPOINT")


class TestShown:
    @for_each(
        "path, given, answer, shown",
        [
            ("/notes", "mnt/notes", "/notes/a/b.md", "mnt/notes/a/b.md"),
            ("/notes", "mnt/notes/", "/notes/a/", "mnt/notes/a/"),
            ("/notes", ".", "/notes/a", "./a"),
            ("/notes", "../x/../notes", "/notes/a", "../x/../notes/a"),
            ("/notes/a", "mnt/notes/a", "/notes/a", "mnt/notes/a"),
            ("/", "mnt", "/a", "mnt/a"),
            ("/", "/", "/a", "/a"),
            ("/notes", "mnt/notes", "/notes2/a", "/mnt/notes2/a"),
            ("/notes", "mnt/notes", "/", "/mnt/"),
        ],
    )
    def test_in_the_words_of_the_command_line(self, path, given, answer, shown):
        assert Target(None, AgentPath(path), given, "/mnt").shown(answer) == shown

    segments = st.lists(st.sampled_from(["a", "b", "a.b", "\udcff", " ", "ä", "-"]), max_size=4)

    @given(segments, segments, st.sampled_from(["", "/"]))
    def test_what_is_shown_leads_back(self, above, below, end):
        given = MOUNT + "".join(f"/{name}" for name in above) + end
        directory = Target(None, AgentPath(split(given)[1]), given, MOUNT)
        path = paths.normalise("/".join(["/", *above, *below]))
        assert split(directory.shown(path)) == (MOUNT, path)

    def test_errors(self):
        place = Target(None, AgentPath("/notes"), "mnt/notes", "/mnt")
        assert place.words("Error: File '/notes' not found") == "File 'mnt/notes' not found"
        assert place.words("path_not_found") == "'mnt/notes': No such file or directory"
        assert place.words("Path '/notes': permission_denied") == "Path 'mnt/notes': Permission denied"
        assert place.words("No space left on device") == "'mnt/notes': No space left on device"
        assert in_words("Error deleting '/': Device or resource busy") == "deleting '/': Device or resource busy"


def test_the_environment_may_name_the_mount(command, monkeypatch):
    monkeypatch.setenv("FUSEBACKEND_MOUNT", MOUNT)
    command.ok("write", "/a", "--text", "one\n")
    command.answers(
        ("ok", "one\n", "read", "/a"),
        ("ok", "a\n", "ls", "--mount", MOUNT, "/"),
    )
