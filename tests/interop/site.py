"""A test site: Redis, a Node process with one BullMQ release, Sluice workers and a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sluice.common.contracts.bullmq import BullKeys
from tests.interop.node import TIMEOUT_S, Node
from tests.support.gateway.sse import Block, Parser
from tests.support.processes.gateway import PYTHON_M, GatewayProcess
from tests.support.processes.worker import Process
from tests.support.servers import RealServer

#: Short times for tests; the defaults are half a minute each. A lock survives a pause of the
#: machine of some seconds, so that its job does not count as stalled.
LOCK_MS, RENEW_MS, STALLED_MS = 7000, 500, 500
#: Much longer than a test waits: a worker gets a job in time only if it is woken up.
DRAIN_DELAY_S = 30
#: Queues of the shared worker, one for each test that needs one.
POOL = 34


class Site:
    """Everything on one Redis; created once per release and test process."""

    def __init__(self, release: str, directory: Path, server: RealServer) -> None:
        self.directory = directory
        self.server = server
        self.node = Node(release, self.server.url)
        # Half of the names have hash tags, as for one node of a Cluster.
        names = [f"q{number}" for number in range(POOL // 2)]
        self._free = [*names, *(f"{{{name}}}" for name in names)]
        self._feedable = [*self._free, *(f"g{number}" for number in range(POOL))]
        self._unworked = self._feedable[POOL:]
        self._started: list[Process] = []
        self._shared: Process | None = None
        self._gateway: GatewayProcess | None = None

    # -- Sluice --------------------------------------------------------------------------------

    def worker(self, *queues: str, **settings: object) -> Process:
        """Starts a Sluice worker and waits until it takes jobs."""
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
        process.wait_for_line(f"BullMQ's queue {queues[0]}", TIMEOUT_S)
        return process

    def queue(self) -> str:
        """A queue for one test; Node listens to it and the shared worker runs its jobs."""
        if self._shared is None:
            self._shared = self.worker(*self._free, BULLMQ_STALLED_INTERVAL_MS=2000)
        name = self._free.pop()
        self.node.ask("listen", queue=name)
        return name

    def queue_without_worker(self) -> str:
        """A queue for one test that no Sluice worker takes jobs from."""
        name = self._unworked.pop()
        self.node.ask("listen", queue=name)
        return name

    def keys(self, queue: str) -> BullKeys:
        return BullKeys(queue)

    @property
    def gateway(self) -> GatewayProcess:
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
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        target = f"/v1/bullmq/{quote(path)}"
        answer = self.gateway.http.request(method, target, json=body, headers=named)
        return answer.status_code, answer.json()

    def post(self, queue: str, name: str, data: Any = None, **opts: Any) -> str:
        body = {"name": name, "data": {} if data is None else data, "opts": opts}
        status, answer = self.http("POST", f"{queue}/jobs", body)
        assert status == 202, answer
        return str(answer["id"])

    def view(self, queue: str, job_id: str) -> dict[str, Any]:
        status, found = self.http("GET", f"{queue}/jobs/{job_id}")
        assert status == 200, found
        return found

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[Block]]:
        with self.gateway.http.stream("GET", f"/v1/bullmq/{quote(path)}") as answer:
            assert answer.status_code == 200

            def blocks() -> Iterator[Block]:
                parser = Parser()
                for piece in answer.iter_raw():
                    parser.feed(piece)
                    while parser.blocks:
                        yield parser.blocks.pop(0)

            yield blocks()

    def leave(self) -> None:
        """Stops everything except Redis, which belongs to the caller."""
        self.node.close()
        if self._gateway is not None:
            self._gateway.close()
        for process in self._started:
            process.kill()

    def close(self) -> None:
        self.leave()
        self.server.close()
