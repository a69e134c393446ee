"""Seconds that the tests of a module may take by day, all together. A run names the modules that take longer.

The figures are those of two quiet cores, rounded up. A module that needs more than `USUAL_S` stands in `LONGER`, with
the reason: it is where the next cut is worth most.
"""

from __future__ import annotations

USUAL_S = 20

LONGER: dict[str, int] = {
    "tests/mounted/test_acls.py": 25,  # three servers for each of some tests, and two hosts
    "tests/mounted/test_builds.py": 40,  # a clone, a build and two large files on each kind of volume
    "tests/mounted/test_crash.py": 30,  # twenty kills, each with a server and three writers
    "tests/mounted/test_execute.py": 35,  # twenty servers that run commands
    "tests/mounted/test_execute_races.py": 40,  # two seconds for each race
    "tests/mounted/test_hostile_clients.py": 30,  # a second for each attack
    "tests/mounted/test_limits.py": 40,  # 60,000 files on each of two volumes
    "tests/mounted/test_log_is_complete.py": 30,  # ten actors, and kills
    "tests/mounted/test_many_mounts.py": 30,  # a PostgreSQL that is killed and started again
    "tests/mounted/test_one_truth.py": 40,  # thousands of random steps, and readers beside writers
    "tests/mounted/test_posix_mounts.py": 60,  # 236 functions on six mounts
    "tests/mounted/test_real_work.py": 40,  # git, tar and rsync on each kind of volume
    "tests/mounted/test_s3.py": 25,  # the POSIX cases on a bucket, too
    "tests/mounted/test_semantics.py": 50,  # 60 promises, of which some are about seconds
    "tests/mounted/test_trees.py": 25,  # each test both ways round on three kinds of volumes
    "tests/mounted/test_views.py": 60,  # 120 tests on three kinds of volumes
}


def of(module: str) -> int:
    """Return the budget of a test module, given as its path from the checkout, in seconds."""
    return LONGER.get(module, USUAL_S)
