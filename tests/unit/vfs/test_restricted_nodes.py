"""Nodes whose last number goes, while the kernel knows the file by a restricted one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fusebackend.rules.ruled_volume import NODES, VARIANTS
from fusebackend.vfs.inode_resolver import InodeResolver
from fusebackend.vfs.inodes import inode_number

VIEW, OTHER_VIEW, MAIN, ELSEWHERE = (
    SimpleNamespace(index=index, is_ruled=is_ruled) for index, is_ruled in ((1, True), (2, True), (3, False), (4, True))
)
NODE = st.integers(1, 40)
NUMBERS = st.lists(st.tuples(st.sampled_from([VIEW, OTHER_VIEW, ELSEWHERE]), NODE, st.sampled_from(VARIANTS[1:])))


@given(NUMBERS, st.lists(st.tuples(NODE, st.sampled_from(VARIANTS)), min_size=1, max_size=6))
def test_a_node_is_known_by_any_number(numbers: list[Any], given_nodes: list[tuple[int, int]]) -> None:
    inodes = {inode_number(route.index, bits | node): object() for route, node, bits in numbers}
    nodes = [bits | node for node, bits in given_nodes]
    known = {node for route, node, _ in numbers if route is not ELSEWHERE}
    found = InodeResolver._unknown(
        SimpleNamespace(inodes=SimpleNamespace(get=inodes.get)),  # type: ignore[arg-type]
        [VIEW, OTHER_VIEW, MAIN],  # type: ignore[list-item]
        nodes,
    )
    assert found == [node for node in nodes if node & NODES not in known]
