"""Real Redis topologies on loopback: a Sentinel set, and a Cluster of six nodes or more."""

from __future__ import annotations

from tests.support.topologies.certificates import Certificates
from tests.support.topologies.cluster import RedisCluster, cluster
from tests.support.topologies.node import LONG_TIMEOUT_MS, Node, one_node
from tests.support.topologies.sentinel import SentinelSet, sentinel_set
from tests.support.waiting import until

__all__ = [
    "LONG_TIMEOUT_MS",
    "Certificates",
    "Node",
    "RedisCluster",
    "SentinelSet",
    "cluster",
    "one_node",
    "sentinel_set",
    "until",
]
