"""What is damaged is left out of a listing; what can't be read at the moment fails it."""

from __future__ import annotations

import errno
import stat

import pytest

from fusebackend.base.errors import oserror
from fusebackend.protocol import ROOT_NODE
from fusebackend.volumes.damage import Damage
from fusebackend.volumes.storage import Inode

CHILDREN = [(b"one", 2), (b"other", 3)]


def listed(error: OSError) -> list[bytes]:
    damage = Damage("a volume")

    def inode_of(node: int) -> Inode:
        if node == 2:
            raise error
        inode = Inode(node, stat.S_IFREG | 0o644, parent=0)
        inode.nlink = 1
        return inode

    return [name for name, _ in damage.entries(ROOT_NODE, CHILDREN, inode_of)]


@pytest.mark.parametrize("error", [Damage("a volume").of_inode((2, *range(11))), oserror(errno.ESTALE)])
def test_a_damaged_inode_is_left_out(error: OSError) -> None:
    assert listed(error) == [b"other"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT])
def test_a_disk_or_a_lower_tree_that_does_not_answer_fails_the_listing(number: int) -> None:
    """Without that name in it `rsync --delete` would delete the file elsewhere."""
    with pytest.raises(OSError) as caught:
        listed(oserror(number))
    assert caught.value.errno == number
