"""The partitions of the queue as the doctor reaches them: each with its keys and its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.addresses import for_tag
from common.contracts.jobs import JobKeys
from common.partitions import Partitions
from ops.doctor.finding import Unable
from ops.doctor.server import Server


@dataclass(frozen=True)
class DoctorLine:
    """One partition."""

    number: int
    keys: JobKeys
    server: Server

    @property
    def client(self) -> Any:
        """The client of its server, if that answers."""
        if not self.server.answers:
            raise Unable(f"partition {self.number} does not answer, see redis.partitions")
        return self.server.client


def lines_to(partitions: Partitions, server: Server) -> tuple[DoctorLine, ...]:
    """A line to each; what is no Cluster has one server for all of them."""
    found: list[DoctorLine] = []
    servers: dict[str, Server] = {}
    for number, keys in enumerate(partitions.keys):
        url = for_tag(server.target.url, keys.tag)
        if url not in servers:
            other = number > 0 and url != server.target.url
            servers[url] = Server(replace(server.target, url=url)) if other else server
        found.append(DoctorLine(number, keys, servers[url]))
    return tuple(found)


def by_server(lines: tuple[DoctorLine, ...]) -> Mapping[str, list[DoctorLine]]:
    """Partitions by where their servers are."""
    found: dict[str, list[DoctorLine]] = {}
    for line in lines:
        found.setdefault(line.server.target.place, []).append(line)
    return found
