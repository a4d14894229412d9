"""The geometry: Figure 1 of the paper, and trees that reach every node exactly once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensue.core.errors import ConfigurationError
from ensue.protocols.causal import hypercube
from ensue.protocols.causal.hypercube import (
    Hypercube,
    bits,
    block,
    cluster_of,
    cluster_order,
    first_in_cluster,
    pack,
    split,
    unpack,
)

bounded = settings(derandomize=True, deadline=None, max_examples=150)

FIGURE_1 = {
    (0, 1): [1], (0, 2): [2, 3], (0, 3): [4, 5, 6, 7],
    (1, 1): [0], (1, 2): [3, 2], (1, 3): [5, 4, 7, 6],
    (2, 1): [3], (2, 2): [0, 1], (2, 3): [6, 7, 4, 5],
    (3, 1): [2], (3, 2): [1, 0], (3, 3): [7, 6, 5, 4],
    (4, 1): [5], (4, 2): [6, 7], (4, 3): [0, 1, 2, 3],
    (5, 1): [4], (5, 2): [7, 6], (5, 3): [1, 0, 3, 2],
    (6, 1): [7], (6, 2): [4, 5], (6, 3): [2, 3, 0, 1],
    (7, 1): [6], (7, 2): [5, 4], (7, 3): [3, 2, 1, 0],
}  # fmt: skip


def recursive(node: int, cluster: int) -> list[int]:
    """List a cluster as the paper defines it (section 2)."""
    first = node ^ (1 << (cluster - 1))
    return [first, *(each for s in range(1, cluster) for each in recursive(first, s))]


@pytest.mark.parametrize(("node", "cluster"), FIGURE_1)
def test_figure_1_is_reproduced(node: int, cluster: int) -> None:
    assert cluster_order(node, cluster) == FIGURE_1[node, cluster]


@bounded
@given(node=st.integers(0, 1023), cluster=st.integers(1, 10))
def test_the_order_of_a_cluster_is_the_recursion_of_the_paper(node: int, cluster: int) -> None:
    assert cluster_order(node, cluster) == recursive(node, cluster)


@bounded
@given(node=st.integers(0, 255), cluster=st.integers(1, 8), data=st.data())
def test_the_first_candidate_is_the_first_in_the_order(
    node: int, cluster: int, data: st.DataObject
) -> None:
    order = cluster_order(node, cluster)
    chosen = data.draw(st.sets(st.sampled_from(order)))
    candidates = sum(1 << each for each in chosen)
    expected = next((each for each in order if each in chosen), None)
    assert first_in_cluster(node, cluster, candidates) == expected


@pytest.mark.parametrize("other", range(1, 8))
def test_cluster_numbers_are_those_of_the_paper(other: int) -> None:
    assert cluster_of(0, other) == {1: 1, 2: 2, 3: 2}.get(other, 3)
    assert other in cluster_order(0, cluster_of(0, other))


def children(node: int, targets: set[int], height: int) -> set[int]:
    """CHILDREN(i, t, h) of section 3.3."""
    bitmap = sum(1 << each for each in targets)
    found = {first_in_cluster(node, cluster, part) for cluster, part in split(node, height, bitmap)}
    assert None not in found
    return {each for each in found if each is not None}


def test_children_are_those_of_section_3_3() -> None:
    all_nodes = set(range(8))
    assert children(0, all_nodes - {0}, 3) == {1, 2, 4}
    assert children(0, all_nodes - {0}, 2) == {1, 2}
    assert children(4, all_nodes - {4}, 2) == {5, 6}
    assert children(0, {3, 4}, 3) == {3, 4}
    assert children(4, {0, 3}, 2) == set()


def tree(root: int, targets: int, dimensions: int) -> tuple[list[tuple[int, int]], int]:
    """Follow a message from its source; return the edges and the greatest depth."""
    edges: list[tuple[int, int]] = []
    deepest = 0
    todo = [(root, dimensions, targets & ~(1 << root), 0)]
    while todo:
        node, height, part, depth = todo.pop()
        deepest = max(deepest, depth)
        for cluster, inside in split(node, height, part):
            child = first_in_cluster(node, cluster, inside)
            assert child is not None
            edges.append((node, child))
            base = block(child, cluster)
            below = unpack(pack(inside & ~(1 << child), base, cluster), base, cluster)
            todo.append((child, cluster - 1, below, depth + 1))
    return edges, deepest


@bounded
@given(count=st.integers(1, 300), data=st.data())
def test_tree_reaches_every_target_once_and_no_other_node(count: int, data: st.DataObject) -> None:
    names = Hypercube(f"p{number}" for number in range(count))
    members = data.draw(st.sets(st.integers(0, count - 1)))
    root = data.draw(st.integers(0, count - 1))
    edges, depth = tree(root, sum(1 << each for each in members), names.dimensions)
    assert sorted(child for _, child in edges) == sorted(members - {root})
    assert {parent for parent, _ in edges} <= members | {root}, "only members forward"
    assert depth <= names.dimensions


@pytest.mark.parametrize("count", [8, 64, 1024])
def test_a_tree_is_as_high_as_the_logarithm(count: int) -> None:
    _, depth = tree(0, (1 << count) - 1, (count - 1).bit_length())
    assert depth == (count - 1).bit_length()


def test_a_set_takes_as_many_bits_as_its_cluster_has_nodes() -> None:
    """Erratum 1 counts 2^(s-1) - 1 bits: the child itself is not among those below it."""
    all_nodes = (1 << 2048) - 1
    assert len(pack(all_nodes, 0, 12)) == 2048 // 8
    assert pack(0, 0, 12) == b""
    assert unpack(b"\xff" * 300, 2048, 12) == all_nodes << 2048, (
        "bits beyond the cluster are ignored"
    )


def test_names_are_unique_and_numbers_are_never_reused() -> None:
    names = Hypercube(["a", "b", "c"])
    assert (names.dimensions, list(bits(names.everyone))) == (2, [0, 1, 2])
    with pytest.raises(ConfigurationError, match="'b' is taken"):
        names.add("b")
    names.remove("b")
    assert list(bits(names.everyone)) == [0, 2]
    assert names.add("d") == 3
    assert Hypercube(["alone"]).dimensions == 0


def test_a_cube_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypercube, "NODES_MAX", 2)
    with pytest.raises(ConfigurationError, match="at most 2 nodes"):
        Hypercube(["a", "b", "c"])
