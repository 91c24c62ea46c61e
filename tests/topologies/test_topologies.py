"""The test topologies stop completely."""

from __future__ import annotations

import pytest

from tests.support.topologies import Node, cluster

pytestmark = [pytest.mark.process, pytest.mark.topology]


def test_servers_are_stopped_when_a_test_fails() -> None:
    nodes: list[Node] = []

    def fails() -> None:
        with cluster(masters=3, replicas_each=0) as servers:
            nodes.extend(servers.nodes)
            nodes[0].pause()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(nodes) == 3
    assert not any(node.alive for node in nodes)
    assert not any(node.log_path.exists() for node in nodes)
