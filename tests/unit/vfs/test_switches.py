"""What is turned off in one place, and rules that have no test elsewhere which fails without them."""

from __future__ import annotations

import ast
import dataclasses
import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from fakekernel import FakeKernel
from for_each import for_each
from onloop import run
from smallkernel import SmallKernel

import fusebackend.vfs
from fusebackend.backends.memory import InMemoryVolume
from fusebackend.base.paths import ROOT
from fusebackend.protocol import AttrChanges, Caller
from fusebackend.testing.each import each
from fusebackend.testing.posix.case import refused
from fusebackend.vfs import switches
from fusebackend.vfs.calls import request
from fusebackend.vfs.inodes import ROOT_INODE
from fusebackend.vfs.mounted_tree import FileSystem
from fusebackend.vfs.setid import CAPABILITY
from fusebackend.vfs.switches import OPTIMISATIONS, PATCHES, Switches, from_environment

ME = Caller(os.geteuid(), os.getegid())
NAMES = [field.name for field in dataclasses.fields(Switches)]
TESTS = Path(__file__).parents[2]


# -- the place -----------------------------------------------------------------------------------------------------


def test_the_file_of_a_feature_says_how_to_turn_it_off() -> None:
    package = Path(fusebackend.vfs.__file__).parents[1]
    files = [*package.glob("vfs/**/*.py"), *package.glob("fuse/**/*.py")]
    openings = [text for file in files for text in _openings(ast.parse(file.read_text()))]
    for case in each(NAMES):
        with case as name:
            says = re.compile(rf"Switch:\s+`{name}`")
            assert sum(bool(says.search(opening)) for opening in openings) == 1


def _openings(module: ast.Module) -> list[str]:
    """The docstrings of a module and of its classes: a file may have several features."""
    return [
        ast.get_docstring(each) or "" for each in (module, *module.body) if isinstance(each, ast.Module | ast.ClassDef)
    ]


def test_each_rule_has_a_test_that_fails_without_it() -> None:
    tests = "".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    assert [name for name in NAMES if name not in OPTIMISATIONS and f'fails_without("{name}")' not in tests] == []


def test_optimisations_are_turned_off_by_the_environment() -> None:
    assert from_environment({}) == Switches()
    off = from_environment({"FUSEBACKEND_OFF": " prefill, cached_readdir,"})
    assert off == Switches(prefill=False, cached_readdir=False)


@pytest.mark.parametrize("name", ["invalidation", "no_such_thing"])
def test_nothing_else_is(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no optimisation"):
        from_environment({"FUSEBACKEND_OFF": f"prefill,{name}"})


# -- optimisations -------------------------------------------------------------------------------------------------


def _stored(kernel: FakeKernel, filesystem: FileSystem) -> bool:
    kernel_side = SmallKernel(filesystem)
    kernel_side.put("/f", b"content")
    filesystem.attach(kernel)
    os_time = AttrChanges(atime_ns=2**62)  # no read has to move it
    run(filesystem.setattr(kernel_side.inode("/f"), os_time))
    kernel_side.open("/f", os.O_RDONLY)
    return any(notice[0] == "store" for notice in kernel.told)


def _kept(kernel: FakeKernel, filesystem: FileSystem) -> bool:
    inode = run(filesystem.mkdir(ROOT_INODE, b"d", 0o755, ME)).inode
    return filesystem.directories[run(filesystem.opendir(inode))].kept


def _absent(kernel: FakeKernel, filesystem: FileSystem) -> bool:
    return run(filesystem.lookup(ROOT_INODE, b"absent")).timeout_s > 0


def _direct(kernel: FakeKernel, filesystem: FileSystem) -> bool:
    return run(filesystem.create(ROOT_INODE, b"f", 0o644, os.O_WRONLY | os.O_CREAT, ME))[1].direct


def _pruned(kernel: FakeKernel, filesystem: FileSystem) -> bool:
    filesystem.tree.routes[0].volume.most_nodes = 1
    found: list[int] = []
    filesystem.pruning.prune = found.extend
    for name in (b"a", b"b"):
        run(filesystem.mkdir(ROOT_INODE, name, 0o755, ME))
    run(filesystem.opendir(ROOT_INODE))
    return bool(found)


SHOWN: dict[str, Callable[[FakeKernel, FileSystem], bool]] = {
    "prefill": _stored, "cached_readdir": _kept, "negative_dentries": _absent, "direct_writes": _direct,
    "pruning": _pruned,
}  # fmt: skip


@for_each("name", [name for name in OPTIMISATIONS if name not in PATCHES])
def test_an_optimisation_is_there_until_it_is_turned_off(name: str) -> None:
    for on in (True, False):
        filesystem = FileSystem({ROOT: InMemoryVolume()}, switches=Switches(**{name: on}))
        assert SHOWN[name](FakeKernel(), filesystem) is on
        filesystem.detach()


@pytest.mark.fails_without("direct_appends")
def test_an_append_passes_the_page_cache_by_in_any_case() -> None:
    off = dataclasses.replace(switches.DEFAULT, direct_writes=False)
    filesystem = FileSystem({ROOT: InMemoryVolume()}, switches=off)
    inode = run(filesystem.mknod(ROOT_INODE, b"f", 0o100644, 0, ME)).inode
    assert run(filesystem.open(inode, os.O_WRONLY | os.O_APPEND)).direct


# -- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.fails_without("o_direct")
def test_no_pages_are_kept_beside_a_handle_with_o_direct() -> None:
    """And none over the first open after the last such handle is closed: they may have been read before that."""
    filesystem = FileSystem({ROOT: InMemoryVolume()})
    inode = run(filesystem.mknod(ROOT_INODE, b"f", 0o100644, 0, ME)).inode

    def keeps(flags: int = os.O_RDONLY) -> bool:
        opened = run(filesystem.open(inode, flags))
        run(filesystem.release(opened.number))
        return opened.keep_pages

    assert keeps() and keeps(os.O_RDONLY | os.O_DIRECT) and keeps()
    writers = [run(filesystem.open(inode, os.O_RDWR | os.O_DIRECT)).number for _ in range(2)]
    for writer in writers:
        assert [keeps(), keeps(os.O_WRONLY)] == [False, False]
        run(filesystem.release(writer))
    assert [keeps(), keeps(), keeps()] == [False, True, True]
    run(filesystem.forget([(inode, 1)]))
    assert not filesystem.direct_io.writers


def _open_as_nobody(filesystem: FileSystem, inode: int, flags: int) -> int:
    request.asked.set(request.Request("open", 0, 65534, 65534))
    number = run(filesystem.open(inode, flags)).number
    request.asked.set(request.Request("write"))
    return number


@pytest.mark.fails_without("set_id")
def test_a_write_takes_the_set_id_bits_and_the_kernel_is_told() -> None:
    kernel = FakeKernel()
    filesystem = FileSystem({ROOT: InMemoryVolume()})
    inode = run(filesystem.mknod(ROOT_INODE, b"f", 0o106777, 0, ME)).inode
    filesystem.attach(kernel)
    number = _open_as_nobody(filesystem, inode, os.O_WRONLY)
    run(filesystem.write(number, 0, b"other bytes"))
    attr = run(filesystem.getattr(inode)).attr
    assert attr is not None and stat.S_IMODE(attr.mode) == 0o777
    assert ("attributes", inode) in kernel.told
    filesystem.detach()


@pytest.mark.fails_without("capabilities")
def test_an_append_takes_the_capabilities_that_were_given_before_and_meanwhile() -> None:
    volume = InMemoryVolume()
    filesystem = FileSystem({ROOT: volume})
    inode = run(filesystem.mknod(ROOT_INODE, b"f", 0o100755, 0, ME)).inode
    number = run(filesystem.open(inode, os.O_WRONLY | os.O_APPEND)).number
    for _ in range(2):
        run(filesystem.setxattr(inode, CAPABILITY, b"\1"))
        run(filesystem.write(number, 0, b"more"))
        refused(errno.ENODATA, volume.getxattr, inode, CAPABILITY)
