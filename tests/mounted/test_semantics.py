"""A test for each promise of SEMANTICS.md: under the name of its heading here, or a row of a table. `POSIX` names cases
of `fusebackend.testing.posix`, and `ELSEWHERE` tests in modules that are about the promise."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mounts
import programs
import pytest
from eventually import eventually
from kinds import MEMORY
from mounts import Serve

import fusebackend
from fusebackend.testing.posix import PosixCases
from fusebackend.testing.posix.case import fails, refused

TESTS = Path(__file__).parents[1]
SEMANTICS = Path(fusebackend.__file__).with_name("SEMANTICS.md")
MINIMAL_ACL = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
NATIVE = ["sqlite:{tmp}/volume.db", MEMORY, "dir:{tmp}/files"]


def slug(heading: str) -> str:
    return "test_" + re.sub(r"\W+", "_", heading.lower()).strip("_")


POSIX = {
    "Rename is atomic and replaces its target": (
        "test_the_target_of_a_rename_is_never_missing",
        "test_rename_over_an_open_file_keeps_the_old_data_for_its_handle",
        "test_noreplace_refuses_an_existing_target",
        "test_exchange_swaps_two_files",
    ),
    "An unlinked file lives until it is closed": (
        "test_a_file_unlinked_while_open_lives_on",
        "test_a_removed_directory_that_is_open_is_empty",
    ),
    "Hard links, symbolic links, special files, modes, owners and times are kept": (
        "test_a_hard_link_is_the_same_file",
        "test_a_symlink_is_followed",
        "test_a_dangling_symlink",
        "test_a_fifo_passes_data",
        "test_mknod_keeps_the_device_number",
        "test_chmod_of_a_file",
        "test_chmod_is_seen_through_every_link",
        "test_chown_sets_owner_and_group",
        "test_a_setgid_directory_passes_its_group_on",
        "test_times_before_1970_and_after_2038",
        "test_changing_contents_without_privileges_clears_the_bits",
    ),
    "Files may have holes": (
        "test_a_sparse_file_of_2_to_the_50",
        "test_a_hole_reads_as_zeros",
        "test_a_hole_takes_no_blocks",
        "test_a_size_near_the_largest_is_refused_or_kept",
    ),
    "Appends land at the end": (
        "test_two_appending_processes_lose_nothing",
        "test_o_append_writes_at_the_end_whatever_the_offset",
    ),
    "A directory can be read while it changes": (
        "test_a_large_directory_read_while_it_changes",
        "test_a_large_directory_read_while_another_process_changes_it",
    ),
    "Locks hold on one mount": (
        "test_flock_excludes_another_handle",
        "test_twenty_waiters_on_one_flock",
        "test_record_locks_exclude_another_process",
    ),
}
"""Promises that POSIX makes as well, with the cases that check them. `test_posix_mounts.py` runs them on each kind of
volume: by day on `sqlite:`, `memory:` and `dir:` at least."""


ELSEWHERE = {
    "What was closed is seen by whoever opens next": (
        "mounted/test_one_truth.py::test_process_and_agent_never_see_anything_stale",
        "mounted/test_coherence.py::test_whoever_reads_sees_one_version_and_never_an_older_one_again",
    ),
    "An agent's change is whole": (
        "mounted/test_one_truth.py::test_a_reader_sees_the_old_bytes_or_the_new",
        "mounted/test_one_truth.py::test_an_edit_beside_a_writer_loses_nothing",
        "mounted/test_one_truth.py::test_of_two_edits_at_once_one_is_told_or_both_are_in",
        "mounted/test_one_truth.py::test_what_a_process_writes_in_one_call_is_seen_whole_by_an_agent",
        "../fusebackend/testing/conformance.py::test_edit_takes_what_read_shows",
        "../fusebackend/testing/conformance.py::test_a_line_has_the_number_that_grep_gives_it",
        "unit/integrations/test_deepagents_permissions.py::test_an_agent_replaces_whatever_backend_it_was_given",
    ),
    "An unmount stores everything": (
        "mounted/test_builds.py::test_all_is_there_after_a_remount",
        "mounted/test_cli.py::test_the_server_unmounts_cleanly",
        "mounted/test_cli.py::test_a_stopped_server_keeps_its_mount_and_what_it_has_not_stored",
    ),
    "What one host closes, another one opens": (
        "mounted/test_two_mounts.py::test_what_was_closed_at_one_host_is_opened_at_the_other",
        "mounted/test_two_mounts.py::test_hosts_that_share_a_route_of_whole_files_come_to_the_same",
    ),
    "When fsync returns, the data is durable": (
        "mounted/test_crash.py::test_fsynced_files_survive_a_killed_server",
        "unit/backends/sqlite/test_power_loss.py::test_the_power_goes",
    ),
    "A killed server loses nothing that was synced": (
        "mounted/test_crash.py::test_fsynced_files_survive_a_killed_server",
        "mounted/test_crash.py::test_what_was_not_fsynced_is_a_prefix_of_what_was_written",
    ),
    "A full disk is an error, and loses nothing": (
        "mounted/test_limits.py::test_a_full_disk_is_enospc_and_loses_nothing",
        "mounted/test_limits.py::test_a_full_disk_reaches_a_writer_that_only_closes_and_syncs_later",
    ),
    "A bad row is one bad entry": ("unit/backends/sqlite/test_sqlite_damage.py::test_a_bad_row_is_one_bad_entry",),
    "Every key of a store has a name": (
        "unit/backends/store/test_store_names.py::test_every_key_is_shown_once_and_can_be_read",
        "unit/backends/store/test_store_names.py::test_where_a_value_is_that_is_no_file",
        "unit/backends/store/test_store_names.py::test_a_key_without_a_slash_is_written_and_deleted_where_it_is",
        "unit/remote/test_keyed.py::test_every_key_has_a_place_where_it_is_found",
    ),
    "A lost update is an error": (
        "mounted/test_two_mounts.py::test_a_lost_update_is_an_error_whoever_is_late",
        "unit/backends/object_store/test_objectstore_volume.py::test_a_lost_update_is_an_error_and_both_versions_are_kept",
        "unit/remote/test_foreign.py::test_a_file_that_others_changed_meanwhile_is_a_conflict_that_loses_nothing",
    ),
    "A backend of text gives exact bytes or an error": (
        "unit/dialects/test_textfiles.py::test_what_is_no_text_is_eilseq_and_leaves_nothing",
        "unit/dialects/test_textfiles.py::test_what_can_not_be_replaced_is_eexist_and_stays",
        "unit/dialects/test_textfiles.py::test_what_is_not_known_is_eio_and_can_be_deleted",
        "unit/dialects/test_textfiles.py::test_every_change_is_exact_or_an_error_that_changed_nothing",
    ),
    "A route is a mount point": (
        "unit/vfs/test_mounted_tree.py::test_names_that_lead_to_routes_are_busy",
        "unit/vfs/test_mounted_tree.py::test_from_route_to_route_is_another_device",
        "unit/vfs/test_mounted_tree.py::test_a_synthesised_directory_becomes_real_when_it_is_needed",
        "unit/composite/test_composite.py::test_move_across_routes_of_volumes_keeps_everything",
    ),
    "A hung route hangs alone": (
        "mounted/test_route_health.py::test_every_request_ends_at_its_deadline",
        "mounted/test_route_health.py::test_readers_of_a_hung_file_do_not_use_up_what_the_kernel_reads_at_once",
        "mounted/test_route_health.py::test_status_names_a_route_that_is_down_since_when_and_why",
        "mounted/test_route_health.py::test_an_agent_is_not_kept_waiting",
    ),
    "A container's files are what its commands see": (
        "mounted/test_docker.py::test_both_sides_see_the_same_files",
        "mounted/test_docker.py::test_a_container_that_stops_hurts_nobody_else",
        "unit/remote/test_foreign.py::test_a_file_that_others_changed_meanwhile_is_a_conflict_that_loses_nothing",
    ),
    "The log is read as files": (
        "mounted/test_history_cli.py::test_calls_are_lines_of_files",
        "mounted/test_history_cli.py::test_without_trees_or_history_there_is_no_log",
    ),
    "Every change can be watched": (
        "mounted/test_watch.py::test_shell_commands",
        "mounted/test_watch.py::test_an_event_can_be_seen_by_whoever_gets_it",
        "mounted/test_watch.py::test_both_faces_at_once_are_followed",
    ),
    "A thread shows what its agent saw": (
        "mounted/test_threads.py::test_ordinary_tools",
        "mounted/test_threads.py::test_an_agent_at_work_is_followed",
    ),
    "A store's namespaces are directories": (
        "unit/backends/store/test_store_namespaces.py::test_namespaces_are_directories_and_keys_are_files",
        "unit/backends/store/test_store_namespaces.py::test_a_mount_of_it",
    ),
    "Without a mount the verbs are the same": (
        "unit/server/test_unmounted.py::test_verbs_of_every_route",
        "unit/server/test_unmounted.py::test_the_command_line",
        "unit/server/test_unmounted.py::test_a_mount_of_its_place_is_refused",
        "unit/server/test_unmounted.py::test_what_is_kept_is_there_again",
    ),
    "A command sees every route at its path": (
        "mounted/test_execute.py::test_every_route_is_where_the_verbs_have_it",
        "mounted/test_execute_escape.py::test_the_home_directory_and_files_beside_the_mount",
        "mounted/test_execute_escape.py::test_writing_outside",
    ),
    "What is cancelled ends": (
        "mounted/test_cancelling.py::test_a_process_can_exit_after_cancelling",
        "mounted/test_execute.py::test_cancelling_ends_the_whole_tree",
    ),
    "A mount has several trees of the same files": (
        "mounted/test_trees.py::test_names_come_and_go",
        "mounted/test_trees.py::test_a_file_is_the_same",
        "unit/vfs/test_added_trees.py::test_pinned",
    ),
    "A snapshot keeps what was there": (
        "mounted/test_snapshots.py::test_a_snapshot_is_a_frozen_copy",
        "mounted/test_snapshots.py::test_names_come_and_go_at_once",
        "unit/trees/test_snapshot_trees.py::test_a_route_without_the_snapshot_is_an_empty_directory",
        "unit/trees/test_snapshot_trees.py::test_below_a_deleted_snapshot_all_is_estale",
    ),
    "A branch can be in a plain directory": (
        "unit/trees/test_checkouts.py::test_everything_that_was_changed_is_taken_in",
        "unit/trees/test_checkouts.py::test_by_the_command_line",
        "mounted/test_worktrees.py::test_in_a_directory",
    ),
    "A merge takes what one side has changed": (
        "unit/trees/merge/test_merge.py::test_a_merge",
        "unit/trees/merge/test_merge_random.py::test_a_merge_is_that_of_the_model",
        "unit/trees/merge/test_merge_undone.py::test_a_merge_is_taken_back",
        "mounted/test_branches.py::test_a_merge_names_the_writers_of_the_branch",
    ),
    "A call in a branch is a call": ("mounted/test_branch_undo.py::test_a_call_in_a_branch_is_shown_and_taken_back",),
    "A view shows what its rules allow": (
        "mounted/test_views.py::test_what_is_hidden_is_not_there_and_can_not_be_made",
        "mounted/test_views.py::test_what_is_denied_is_refused_and_lacks_the_bits",
        "mounted/test_views.py::test_append_is_at_the_end_alone",
        "mounted/test_views.py::test_four_doors_decide_alike",
        "mounted/test_views.py::test_what_is_hidden_is_in_nothing_that_is_kept",
        "unit/integrations/test_deepagents_permissions.py::test_an_escape_leads_around_no_rule",
    ),
    "What is interrupted waits for an approval": (
        "mounted/test_approvals.py::test_a_write_waits_until_it_is_approved_and_happens_once",
        "mounted/test_approvals.py::test_by_the_kernel_is_refused_at_once_with_a_number",
        "mounted/test_approvals.py::test_starts_when_it_is_approved",
    ),
    "A restore puts back what was there": (
        "unit/trees/test_restore.py::test_a_tree_is_as_it_was",
        "unit/trees/test_restore.py::test_attributes_holes_links_and_special_files",
        "mounted/test_undo.py::test_files_that_are_open_for_writing",
        "unit/cli/test_cli_states.py::test_what_is_gone_is_restored",
    ),
    "What is forgotten is kept nowhere": ("mounted/test_undo.py::test_no_byte_of_it_is_left",),
    "A default that runs commands runs them itself": (
        "mounted/test_execute.py::test_the_defaults_own_execute_ran",
        "mounted/test_execute_carried.py::test_there_and_back",
        "mounted/test_execute_carried.py::test_a_mount_of_a_sandbox_elsewhere",
    ),
    "A failure ends one request": (
        "mounted/test_faults.py::test_a_defect_is_eio_for_the_caller",
        "mounted/test_faults.py::test_each_defect_is_logged_once_with_its_traceback",
    ),
    "Names are bytes": (
        "unit/cli/test_cli_listing.py::test_names_of_any_bytes",
        "mounted/test_cli_verbs.py::test_on_a_terminal_nothing_steers_it_and_a_bar_shows_how_far_it_is",
        "../fusebackend/testing/conformance.py::test_a_name_may_be_bytes_that_are_no_text",
        "unit/integrations/test_odd_names.py::test_tools_show_each_name_and_take_it_back",
    ),
    "A bucket holds plain objects": (
        "mounted/test_s3.py::TestPosix",
        "unit/backends/object_store/test_objectstore_volume.py::test_modes_owners_times_and_links_are_metadata_that_other_tools_know",
        "unit/backends/object_store/test_objectstore_volume.py::test_empty_directories_outlive_their_last_file_and_leave_nothing_behind",
        "unit/backends/object_store/test_objectstore_renames.py::test_a_directory_is_whole_in_one_place_after_a_crash",
    ),
    "A verb over the control socket is the verb": (
        "unit/control/test_control_client.py::TestConformance",
        "mounted/test_python_api.py::test_what_a_process_does_with_its_mount",
    ),
    "A mount describes itself in files": (
        "mounted/test_trees.py::test_status_is_what_the_attribute_and_the_command_say",
        "mounted/test_trees.py::test_agents_reach_it_by_name",
        "unit/vfs/test_pseudo_files.py::test_each_open_keeps_its_content_until_it_is_closed",
        "unit/vfs/test_added_trees.py::test_the_trees_directory",
        "unit/vfs/test_added_trees.py::test_without_one_its_name_is_the_volumes",
    ),
}
"""Promises that whole modules are about, with the tests there that show them, below `tests/`."""


def test_every_promise_has_its_test() -> None:
    headings = re.findall(r"^## (.*)$", SEMANTICS.read_text(), re.MULTILINE)
    promised = [slug(heading) for heading in headings if heading not in ("What is not promised", *POSIX, *ELSEWHERE)]
    here = [name for name in globals() if name.startswith("test_") and name != "test_every_promise_has_its_test"]
    assert promised == here
    assert POSIX.keys() | ELSEWHERE.keys() <= set(headings)
    for place in itertools.chain(*ELSEWHERE.values()):
        module, _, name = place.partition("::")
        assert re.search(rf"\b(?:def|class) {name}\(", (TESTS / module).read_text()), place
    assert {name for names in POSIX.values() for name in names} <= set(dir(PosixCases))


@pytest.fixture(scope="module", params=NATIVE, ids=["sqlite", "memory", "dir"])
def native_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounts.of_kind(request, tmp_path_factory, request.param, options=mounts.OTHERS) as server:
        yield server.path


@pytest.fixture
def native(native_server: Path) -> Iterator[Path]:
    yield native_server
    mounts.empty(native_server)


def test_a_search_finds_what_was_closed_and_ends(native: Path) -> None:
    with fusebackend.connect(native) as client:
        for number in range(3):
            (native / f"{number}.txt").write_text(f"number{number}\n" * 2)
            found = client.grep(f"number{number}").matches or []
            assert [match["path"] for match in found] == [f"/{number}.txt"] * 2
        (native / "1.txt").write_text("replaced\n")
        (native / "2.txt").rename(native / "2.md")
        assert client.grep("number1").matches == []
        assert {match["path"] for match in client.grep("number2").matches or []} == {"/2.md"}
        cut = client.grep("number", max_count=3)
        assert (len(cut.matches or []), cut.truncated) == (3, True)


def test_a_route_that_others_change_unseen_is_believed_for_its_ttl(tmp_path: Path, serve: Serve) -> None:
    files = tmp_path / "files"
    files.mkdir()
    path = serve(f"dir:{files}", options=["ttl=0.2"]).path
    (files / "file").write_text("one")
    assert (path / "file").read_text() == "one"
    (files / "file").write_text("three")
    eventually(lambda: (path / "file").read_text() == "three")
    status = os.getxattr(path, "user.fusebackend.status").decode()
    assert '"ttl_s": 0.2' in status


@pytest.mark.parametrize("url", ["sqlite:{tmp}/volume.db", MEMORY])
def test_a_limit_is_an_error_and_loses_nothing(tmp_path: Path, serve: Serve, url: str) -> None:
    """`tests/unit/volumes/test_quota.py` counts at random, and has the other ways to be refused."""
    limited = url.format(tmp=tmp_path) + "?limit_bytes=4MiB&limit_files=40"
    server = serve(limited)
    path = server.path

    def usage() -> dict[str, int]:
        (route,) = json.loads((path / ".fusebackend/status.json").read_text())["routes"]
        return dict(route["usage"])

    def room() -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    assert room() == (4 << 20, 4 << 20)
    (path / "kept").write_bytes(b"k" * (1 << 20))
    dd = ["dd", "if=/dev/zero", f"of={path}/large", "bs=1M", "count=8"]
    assert b"Disk quota exceeded" in subprocess.run(dd, capture_output=True).stderr
    assert room() == (4 << 20, 0)
    with (path / "kept").open("r+b", buffering=0) as file:
        file.write(b"K" * (1 << 20))
        refused(errno.EDQUOT, file.write, b"more")
        os.truncate(file.fileno(), 1 << 30)
    with fusebackend.connect(path) as client:
        assert "Disk quota exceeded" in (client.write("/agent/file", "text").error or "")
    (path / "large").unlink()
    eventually(lambda: usage()["used_bytes"] == 1 << 20, 10)
    with fails(errno.EDQUOT):
        for number in range(60):
            (path / str(number)).write_text("x")
    assert usage() == {"used_bytes": (1 << 20) + 39 * 4096, "limit_bytes": 4 << 20, "used_files": 40, "limit_files": 40}
    assert os.statvfs(path).f_ffree == 0
    said = "/ holds 1.15 MiB of 4 MiB (2.85 MiB left), 40 of 40 files and directories (0 left)"
    assert said in programs.ok("status", path, cwd=path) and said in programs.ok("df", cwd=path)
    if url.startswith("sqlite"):
        mounts.sync(path)
        server.kill()
        path = serve(limited).path
        assert (usage()["used_bytes"], usage()["used_files"]) == ((1 << 20) + 39 * 4096, 40)


def test_extended_attributes_are_kept_acls_where_the_kernel_checks_them(native: Path) -> None:
    file = native / "file"
    file.touch()
    os.setxattr(file, "user.name", b"\x00value")
    assert os.getxattr(file, "user.name") == b"\x00value" and os.listxattr(file) == ["user.name"]
    os.removexattr(file, "user.name")
    refused(errno.ENODATA, os.getxattr, file, "user.name")
    refused(errno.ENOTSUP, os.setxattr, file, "system.posix_acl_access", MINIMAL_ACL)
    if not os.path.ismount("/sys/fs/selinux"):  # a kernel with SELinux answers itself
        refused(errno.ENOTSUP, os.getxattr, file, "security.selinux")
        os.setxattr(file, "security.selinux", b"label")
        assert os.getxattr(file, "security.selinux") == b"label"


def _names_and_bytes(top: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", MEMORY])
def test_what_is_changed_in_a_branch_is_changed_nowhere_else(kind: str, tmp_path: Path, serve: Serve) -> None:
    """`test_branches.py` has real work, and branches of branches; the published cases every change."""
    (tmp_path / "files").mkdir()
    routes = {"/notes": "memory:", "/a/b": f"dir:{tmp_path}/files"}
    mounted = serve(kind.format(tmp=tmp_path), routes=routes, options=["snapshots=manual", "ttl=0"]).path
    branch = mounted / ".fusebackend/branches/one"
    (mounted / "d").mkdir()
    for path in ("d/file", "notes/note", "a/b/live", "a/b/ours"):
        (mounted / path).write_text("before")
    before = _names_and_bytes(mounted)
    with fusebackend.connect(mounted) as client:
        assert client.create_branch("one").routes == {"/": "frozen", "/a/b/": "live", "/notes/": "frozen"}
        assert _names_and_bytes(branch) == before
        (branch / "d/file").write_text("after")
        os.link(branch / "a/b/ours", branch / "linked")
        (branch / "linked").write_text("by both names")
        (branch / "notes/note").rename(branch / "d/note")
        assert client.write("/.fusebackend/branches/one/a/b/new", "new").error is None
        assert _names_and_bytes(mounted) == before
        assert (branch / "a/b/ours").read_text() == "by both names"
        (mounted / "d/file").unlink()
        (mounted / "a/b/live").write_text("shows through")
        assert (branch / "d/file").read_text() == "after"
        assert (branch / "a/b/live").read_text() == "shows through"
        refused(errno.EXDEV, (branch / "d/file").rename, mounted / "d/file")
        refused(errno.EBUSY, (branch / "notes").rmdir)
        (snapshot,) = client.snapshots()
        refused(errno.EBUSY, client.delete_snapshots, snapshot.name)
        client.delete_branches("one")
        assert client.snapshots() == [] and not branch.exists()


def test_what_was_there_for_ten_seconds_can_be_had_back(tmp_path: Path, serve: Serve) -> None:
    mounted = serve(f"sqlite:{tmp_path}/volume.db", routes={"/memory": "memory:"}).path
    snapshots = mounted / ".fusebackend/snapshots"
    works = (mounted / "work", mounted / "memory/work")
    for work in works:
        work.mkdir()
        (work / "file").write_text("precious\n")

    def with_files() -> list[str]:
        return sorted(
            taken.name
            for taken in snapshots.glob("@*")
            if [path.read_text() for path in taken.rglob("work/file")] == ["precious\n"] * 2
        )

    eventually(with_files, 60)
    for loss in ("rm -r work", ": > work/file", "echo other > work/file", "echo x > x; mv x work/file"):
        for work in works:
            subprocess.run(["bash", "-euc", loss], cwd=work.parent, check=True)
            programs.ok("restore", "work", "--from", with_files()[-1], cwd=work.parent)
            assert (work / "file").read_text() == "precious\n"


def history_of(mounted: mounts.Mounted, wanted: str) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return the calls of a mount that hold a word: kind, title, and the changes by kind and path."""
    with fusebackend.connect(mounted.path) as client:
        return [
            (call.kind, call.title, [(change.change, change.path) for change in client.changes(call.call)])
            for call in reversed(client.log())
            if wanted in call.title
        ]


@pytest.mark.parametrize("kind", ["sqlite:{tmp}/volume.db", "dir:{tmp}/files"], ids=["sqlite", "dir"])
def test_every_change_has_a_call(kind: str, tmp_path: Path, serve: Serve) -> None:
    """`test_log_is_complete.py` has ten actors and kills, `test_history_cli.py` agents that name their calls."""
    (tmp_path / "files").mkdir()
    mounted = serve(kind.format(tmp=tmp_path))
    path = mounted.path
    with fusebackend.connect(path) as client:
        assert client.write("/made", "by a verb\n").error is None
        assert client.read("/nowhere").error and client.delete("/nowhere").error
        done = client.run("echo a > /one; setsid sh -c 'echo b >> /two; mv /two /three'; sh -c 'rm /made' & wait")
        assert done.exit_code == 0, done.output
        with fusebackend.acting(fusebackend.Actor(agent="planner", call="toolu_9")):
            client.write("/tool", "x")
            client.edit("/tool", "x", "y")
    script = "echo session1 > f; exec 7> g; (setsid sh -c 'echo h > other'); echo i >&7; ln f l; mkdir d; mv d e"
    programs.session(script, path)
    with mmap_of(path / "three") as mapped:
        mapped[0:1] = b"B"
        mapped.flush()
    assert [found[2] for found in history_of(mounted, "write /made")] == [[("create", "/made")]]
    assert history_of(mounted, "nowhere") == []
    ((of_command, _, changes),) = history_of(mounted, "echo a > /one")
    assert of_command == "command"
    assert sorted(changes) == [("create", "/one"), ("create", "/two"), ("remove", "/made"), ("rename", "/two")]
    ((of_tool, _, changes),) = history_of(mounted, "/tool")
    assert (of_tool, changes) == ("tool", [("create", "/tool")])
    ((of_session, _, changes),) = history_of(mounted, "session1")
    assert (of_session, changes) == (
        "session",
        [("create", "/f"), ("create", "/g"), ("create", "/l"), ("create", "/d"), ("rename", "/d")],
    )
    assert [found[2] for found in history_of(mounted, "sh -c echo h")] == [[("create", "/other")]]
    assert ("session", [("content", "/three")]) in [(kind, found) for kind, _, found in history_of(mounted, "")]
    assert json.loads((path / ".fusebackend/status.json").read_text())["history"]["incomplete"] is None


@contextlib.contextmanager
def mmap_of(path: Path) -> Iterator[mmap.mmap]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        yield mapped


@pytest.mark.parametrize(
    ("kind", "undo"), [("sqlite:{tmp}/volume.db", "instant"), ("dir:{tmp}/files", "copies")], ids=["sqlite", "dir"]
)
def test_the_bytes_before_a_change_are_kept_for_a_day(kind: str, undo: str, tmp_path: Path, serve: Serve) -> None:
    """`test_undo.py` and `tests/unit/history/` have more."""
    (tmp_path / "files").mkdir()
    mounted = serve(kind.format(tmp=tmp_path))
    path = mounted.path
    big = os.urandom(65 << 20)
    (path / "big").write_bytes(big)
    programs.session("echo old > file; chmod 640 file; truncate -s 8M holes", path)
    programs.session("echo new > file; echo y > holes; : > big; echo t > temporary; rm temporary", path)
    with fusebackend.connect(path) as client:
        ((route,), status) = client.status()["routes"], client.status()["history"]
        assert route["undo"] == undo and status["incomplete"] is None
        newest = client.log(limit=1)[0]
        changes = {change.path: change for change in client.changes(newest.call) if change.change != "create"}
        assert [(change.path, change.size) for change in changes.values()] == [
            ("/file", 4), ("/holes", 8 << 20), ("/big", 65 << 20), ("/temporary", 2),
        ]  # fmt: skip
        assert changes["/temporary"].kept is None  # the call had made it itself
        if undo == "copies":
            assert (changes["/big"].kept, changes["/big"].why_lost) == ("lost", "larger than 64 MiB")
            images = Path(status["path"]) / "images"
            assert sum(each.stat().st_blocks for each in images.iterdir()) * 512 < 1 << 20, "holes are kept as holes"
            return
        assert changes["/big"].kept == "snapshot" and client.undo(newest.call).conflicts == []
    assert (path / "file").read_text() == "old\n" and stat.S_IMODE((path / "file").stat().st_mode) == 0o640
    assert (path / "holes").read_bytes() == bytes(8 << 20) and (path / "big").read_bytes() == big
