"""A Redis, a Node with one of BullMQ's releases, workers and a gateway of ours: all on one site."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.contracts.bullmq import BullKeys
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.gateway.sse import Block, Parser
from tests.interop.node import PATIENCE_S, Node, require_node
from tests.support.backends import SYSTEM, RealServer, require_binary
from tests.worker.processes import Process

#: Times that a test can wait for; the defaults are half a minute each. A lock outlives a machine
#: that stands still for some seconds: nobody may take its job for stalled.
LOCK_MS, RENEW_MS, STALLED_MS = 7000, 500, 500
#: Far longer than a test waits for a job: only what wakes a worker up lets it look in time.
DRAIN_DELAY_S = 30
#: Queues that the shared worker takes jobs from, one for each test that wants one.
POOL = 34


class Site:
    """Everything that shares one Redis; made once for each release and test process."""

    def __init__(self, release: str, directory: Path, *, server: RealServer | None = None) -> None:
        require_node()
        self.directory = directory
        self.server = server or RealServer(require_binary(SYSTEM))
        self.node = Node(release, self.server.url)
        # Half of them are called as those are who want to live on one node of a cluster.
        names = [f"q{number}" for number in range(POOL // 2)]
        self._free = [*names, *(f"{{{name}}}" for name in names)]
        self._feedable = [*self._free, *(f"g{number}" for number in range(POOL))]
        self._unworked = self._feedable[POOL:]
        self._started: list[Process] = []
        self._shared: Process | None = None
        self._gateway: GatewayProcess | None = None

    # -- ours ------------------------------------------------------------------------------

    def worker(self, *queues: str, **settings: object) -> Process:
        """A worker of ours, ready to take jobs."""
        environment: dict[str, object] = {
            "REDIS_URL": self.server.url,
            "BULLMQ_QUEUES": ",".join(queues),
            "BULLMQ_LOCK_MS": LOCK_MS,
            "BULLMQ_LOCK_RENEW_MS": RENEW_MS,
            "BULLMQ_STALLED_INTERVAL_MS": STALLED_MS,
            "BULLMQ_DRAIN_DELAY_S": DRAIN_DELAY_S,
            "WORKER_HANDLERS": "tests.interop.handlers",
            **settings,
        }
        log = self.directory / f"worker-{len(self._started)}.log"
        process = Process("worker.bullmq", log, **environment)
        self._started.append(process)
        process.wait_for_line(f"BullMQ's queue {queues[0]}", PATIENCE_S)
        return process

    def queue(self) -> str:
        """A queue of the test's own, which Node listens to and the shared worker works."""
        if self._shared is None:
            self._shared = self.worker(*self._free, BULLMQ_STALLED_INTERVAL_MS=2000)
        name = self._free.pop()
        self.node.ask("listen", queue=name)
        return name

    def unworked(self) -> str:
        """A queue of the test's own, which nobody of ours takes jobs from."""
        name = self._unworked.pop()
        self.node.ask("listen", queue=name)
        return name

    def keys(self, queue: str) -> BullKeys:
        return BullKeys(queue)

    @property
    def gateway(self) -> GatewayProcess:
        """A gateway that feeds all of them."""
        if self._gateway is None:
            self._gateway = GatewayProcess(
                PYTHON_M,
                self.directory / "gateway.log",
                REDIS_URL=self.server.url,
                PORT="0",
                BULLMQ_ADD_QUEUES=",".join(self._feedable),
            ).wait_until_listening()
        return self._gateway

    # -- over HTTP -------------------------------------------------------------------------

    def http(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """A request about BullMQ; status and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named["Content-Type"] = "application/json"
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, f"/v1/bullmq/{quote(path)}", raw, named)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def post(self, queue: str, name: str, data: Any = None, **opts: Any) -> str:
        """A job by HTTP; its id."""
        body = {"name": name, "data": {} if data is None else data, "opts": opts}
        status, answer = self.http("POST", f"{queue}/jobs", body)
        assert status == 202, answer
        return str(answer["id"])

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[Block]]:
        """Live events by HTTP."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE_S)
        connection.request("GET", f"/v1/bullmq/{quote(path)}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def blocks() -> Iterator[Block]:
            parser = Parser()
            while piece := answer.read1(65536):
                parser.feed(piece)
                while parser.blocks:
                    yield parser.blocks.pop(0)

        yield blocks()
        connection.close()

    def leave(self) -> None:
        """End everything but the Redis, which is somebody else's."""
        self.node.close()
        if self._gateway is not None:
            self._gateway.close()
        for process in self._started:
            process.kill()

    def close(self) -> None:
        self.leave()
        self.server.close()
