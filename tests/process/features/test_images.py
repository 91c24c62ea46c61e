"""Images through a real gateway and real workers, also if one of the processes is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from sluice.common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.support.processes.features import STAGES, ImageProcesses
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer
from tests.support.worker.images import photo

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a gateway and workers")]


@pytest.fixture
def images(aof: RealServer, start_processes: Callable[..., ImageProcesses]) -> ImageProcesses:
    return start_processes(ImageProcesses, aof.url)


def test_the_job_has_progress_events_and_the_result(images: ImageProcesses) -> None:
    images.worker()
    image_id = images.upload(photo())
    image = images.check_complete(image_id)
    path = f"/v1/jobs/{image['job_id']}"
    stream = images.request("GET", f"{path}/events").text
    data = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    stages = [each["data"]["stage"] for each in data if "stage" in (each.get("data") or {})]
    assert stages == [*STAGES][1:-1]
    job = images.request("GET", path).json()
    assert job["result"]["sha256"] == image["sha256"]
    assert job["result"]["details"]["source_format"] == "jpeg"


# -- killed processes --------------------------------------------------------------------------

#: Crash points by stage, in the order they are written; then before and after the result.
CRASH_POINTS = {
    "validating": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:1",
    "encoding": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:4",
    "uploading": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:5",
    "stored": CrashPoint.BEFORE_IMAGE_RESULT.value,
    "published": CrashPoint.AFTER_IMAGE_RESULT.value,
}


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_kill_9_of_the_worker(images: ImageProcesses, point: str) -> None:
    killed = images.worker("killed", **{CRASH_VARIABLE: CRASH_POINTS[point]})
    image_id = images.upload(photo(size=(3000, 2000)))
    assert killed.wait() == -signal.SIGKILL
    assert (images.record(image_id)["stage"] == "done") == (point == "published")
    assert len(images.entries(image_id)) == int(point == "published")
    images.worker("other")
    # A second attempt computes the same, and the result is published once.
    image = images.check_complete(image_id)
    wait_until(images.has_no_pending_jobs)
    assert images.client.hget(f"job:{image['job_id']}", "status") == b"done"


def test_images_survive_a_killed_redis(images: ImageProcesses, aof: RealServer) -> None:
    images.worker(worker_handlers="slow_images")
    ids = [images.upload(photo(seed=seed)) for seed in range(3)]
    images.wait_for_starts(2)
    aof.kill()
    images.go()
    aof.start()
    wait_until(lambda: images.request("GET", f"/v1/images/{ids[0]}").status_code == 200)
    for image_id in ids:
        images.check_complete(image_id)
