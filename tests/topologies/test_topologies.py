"""The test topologies work as expected, and stop completely."""

from __future__ import annotations

import pytest

from tests.support.topologies import Node, cluster, sentinel_set

pytestmark = [pytest.mark.process, pytest.mark.topology]

TAG = "{3}"


def test_a_sentinel_failover_keeps_replicated_data() -> None:
    with sentinel_set() as servers:
        first = servers.master
        first.client.set("word", "kept")
        servers.wait_in_sync(2)
        second = servers.failover()
        assert second is not first
        servers.wait_in_sync(2)
        servers.wait_known()
        second.kill()
        third = servers.wait_failover(second)
        assert third.client.get("word") == b"kept"
        second.restart()
        servers.wait_in_sync(2)
        assert second.role == "slave"


def test_cluster_slots_move_to_an_added_node() -> None:
    with cluster() as servers:
        slot = servers.slot_of(TAG)
        source = servers.owner(slot)
        for number in range(120):
            source.client.set(f"{TAG}:{number}", number)
        target = servers.add_node()
        assert servers.move_slot(slot, target) == 120
        assert servers.owner(slot) is target
        assert target.client.get(f"{TAG}:7") == b"7"
        servers.flush()
        assert target.client.dbsize() == 0


def test_a_killed_cluster_master_comes_back_as_a_replica() -> None:
    with cluster() as servers:
        slot = servers.slot_of(TAG)
        first = servers.owner(slot)
        first.client.set(TAG, "kept")
        first.client.wait(1, 5000)
        first.kill()
        second = servers.wait_failover(first, slot)
        assert second.client.get(TAG) == b"kept"
        first.restart()
        servers.wait_agreed()
        assert servers.replicas_of(second) == [first]
        assert servers.failover(slot) is first


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
