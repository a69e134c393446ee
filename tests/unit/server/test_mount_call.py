"""The call of `mount()`: its keywords are the settings of a mount, and calls of every release go on working."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from live import live

import fusebackend
from fusebackend.backends import InMemoryBackend
from fusebackend.config import MountSettings
from fusebackend.history.masking import LogOptions
from fusebackend.server import api
from fusebackend.shell.options import ShellOptions

FIRST_RELEASE = {
    "read_only": False, "allow_other": False, "ttl_s": 1.0, "deadline_s": 30.0, "limits": None, "options": (),
    "runtime": None, "shell": None, "trees": None, "trees_name": None, "snapshots": None, "history": None,
    "route_rules": None, "views": None, "default_view": None, "view_mounts": None, "log": None, "approvals": None,
    "metrics": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_mounted(monkeypatch) -> None:
    monkeypatch.setattr(api, "Mount", lambda backend, mountpoint, settings: settings)


def mounted(**given: Any) -> Any:
    return fusebackend.mount(InMemoryBackend(), "/mnt", **given)


def test_the_defaults_of_the_first_release_are_none_of_ones_own() -> None:
    assert mounted(**FIRST_RELEASE) == mounted() == MountSettings()
    assert mounted().options == () and mounted().snapshots == "manual" and mounted().history == "off"


def test_keywords_are_settings() -> None:
    made = mounted(ttl_s=2, shell=ShellOptions(network=True), log=LogOptions("none"), views={"a": iter(())})
    assert made == MountSettings(ttl_s=2, shell=ShellOptions(network=True), log=LogOptions("none"), views={"a": []})


def test_words_count_before_keywords_but_never_make_writable() -> None:
    made = mounted(ttl_s=1, read_only=True, options=["ttl=5 s,rw", "noexec"])
    assert (made.ttl_s, made.read_only, made.options) == (5, True, ("noexec",))
    assert mounted(read_only=False, options=["ro"]).read_only


@pytest.mark.parametrize(
    ("given", "error"),
    [({"trees": "no"}, ValueError), ({"options": ["no"]}, ValueError), ({"deadline_s": 0}, ValueError),
     ({"limits": {"..": None}}, ValueError), ({"default_view": "a"}, ValueError), ({"colour": "red"}, TypeError)],
)  # fmt: skip
def test_what_can_not_be(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        mounted(**given)


def test_editors_and_help_know_every_setting() -> None:
    parameters = inspect.signature(fusebackend.mount).parameters
    assert set(parameters) == {"backend", "mountpoint", "runtime", *MountSettings.__struct_fields__}
    assert set(FIRST_RELEASE) < set(parameters)
    for name in MountSettings.__struct_fields__:
        assert parameters[name].annotation is not inspect.Parameter.empty
        assert f"\n    {name}: " in (fusebackend.mount.__doc__ or "")


def test_a_mount_whose_server_has_no_log_file_names_none(tmp_path: Path) -> None:
    with live(tmp_path, InMemoryBackend()) as server:
        assert "log" not in server.mount.status()
