"""Following a job through a gateway that goes away and comes back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.backends import RealServer
from tests.cli.rig import SLUICE, House
from tests.gateway.processes import PYTHON_M, GatewayProcess, environment
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process


def test_watch_goes_on_where_it_was(redis_server: RealServer, tmp_path: Path) -> None:
    house = House(redis_server, tmp_path)
    port = str(house.gateway.port)
    second: GatewayProcess | None = None
    watching: subprocess.Popen[bytes] | None = None
    try:
        job_id = house.submit("forever")
        out = tmp_path / "out"
        err = tmp_path / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            watching = subprocess.Popen(
                (*SLUICE, "watch", job_id),
                env=environment(SLUICE_URL=house.url), stdout=stdout, stderr=stderr,
            )  # fmt: skip
        wait_until(lambda: "well" in out.read_text(), 60)
        house.gateway.process.kill()
        house.gateway.process.wait(20)
        wait_until(lambda: "coming back" in err.read_text(), 60)
        second = GatewayProcess(
            PYTHON_M, tmp_path / "second.log", PORT=port, REDIS_URL=redis_server.url
        ).wait_until_listening()
        assert house.run("cancel", job_id).code == 0
        assert watching.wait(60) == 3
        # Every event once: the first word was not shown again.
        assert out.read_text().count("well") == 1
        assert err.read_text().count("running") == 1
    finally:
        if watching is not None:
            watching.kill()
            watching.wait(20)
        if second is not None:
            second.close()
        house.close()
