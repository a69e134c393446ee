"""Seconds that the tests of a module may take by day, all together. A run names the modules that take longer.

The figures are those of three processes on two quiet cores, rounded up. A module that needs more than `USUAL_S` stands
in `LONGER`, with the reason: it is where the next cut is worth most.
"""

from __future__ import annotations

USUAL_S = 25

LONGER: dict[str, int] = {
    "tests/mounted/test_acls.py": 30,  # two servers for each of some tests, and two hosts
    "tests/mounted/test_branches.py": 30,  # real work, merges, calls and states of the past, each in a branch
    "tests/mounted/test_builds.py": 35,  # a clone, a build and two large files on each kind of volume
    "tests/mounted/test_cli.py": 30,  # a mount and an umount for most of 70 tests: they are what it is about
    "tests/mounted/test_coherence.py": 35,  # directories of 2,000 files, and walks over 1,000 inodes
    "tests/mounted/test_control.py": 35,  # fifty clients that are killed
    "tests/mounted/test_execute.py": 45,  # thirty servers that run commands
    "tests/mounted/test_execute_docker.py": 45,  # containers begin and end
    "tests/mounted/test_execute_escape.py": 50,  # bombs and races, with a second for each
    "tests/mounted/test_external_suites.py": 30,  # fsx, stress-ng and fio on each kind of volume
    "tests/mounted/test_likeness.py": 35,  # tables of calls by root and by others, beside a plain directory
    "tests/mounted/test_log_is_complete.py": 30,  # ten actors at once, and kills of servers of five kinds
    "tests/mounted/test_many_mounts.py": 35,  # a PostgreSQL that is killed and started again
    "tests/mounted/test_posix_mounts.py": 70,  # 236 functions on six mounts
    "tests/mounted/test_real_work.py": 40,  # git, tar and rsync on each kind of volume
    "tests/mounted/test_route_health.py": 35,  # deadlines of seconds, and 64 readers of a hung route
    "tests/mounted/test_s3.py": 45,  # the POSIX cases on a bucket, too
    "tests/mounted/test_semantics.py": 30,  # what was there for ten seconds, and 65 MiB before a change
    "tests/mounted/test_service_faults.py": 40,  # a service that is killed, stalls and comes back
    "tests/mounted/test_snapshots.py": 30,  # writers beside each kind of volume
    "tests/mounted/test_threads.py": 35,  # rg, find and git over conversations, and some that grow, in two databases
    "tests/mounted/test_trees.py": 35,  # each test both ways round on two kinds of volumes
    "tests/mounted/test_two_mounts.py": 50,  # two hosts on each kind of shared volume, also with clocks apart
    "tests/mounted/test_undo.py": 35,  # a session of everything, and an example over real services
    "tests/mounted/test_views.py": 50,  # 120 tests on two kinds of volumes
    "tests/repository/test_readme.py": 80,  # each snippet of the documents, with its services
    "tests/unit/backends/object_store/test_objectstore_throttling.py": 45,  # the client library's own waits
    "tests/unit/backends/postgres/test_postgres_lease.py": 45,  # hosts that are silent for seconds
    "tests/unit/backends/postgres/test_postgres_set_back.py": 30,  # a state that must be seconds old, and a standby
    "tests/unit/backends/threads/test_threads_head.py": 30,  # agents that run, and a suite on heads in three forms
    "tests/unit/backends/threads/test_threads_prune.py": 30,  # random histories and their twins, and 120 checkpoints
    "tests/unit/integrations/test_fsspec_filesystem.py": 30,  # fsspec's own suite
}


def of(module: str) -> int:
    """Return the budget of a test module, given as its path from the checkout, in seconds."""
    return LONGER.get(module, USUAL_S)
