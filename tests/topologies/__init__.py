"""Real Redis topologies on loopback: a Sentinel set, and a Cluster of six nodes or more."""

from __future__ import annotations

from tests.topologies.cluster import RedisCluster, cluster
from tests.topologies.node import Node
from tests.topologies.sentinel import SentinelSet, sentinel_set
from tests.topologies.waiting import LONG_TIMEOUT_MS, until

__all__ = [
    "LONG_TIMEOUT_MS",
    "Node",
    "RedisCluster",
    "SentinelSet",
    "cluster",
    "sentinel_set",
    "until",
]
