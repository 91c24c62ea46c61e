"""Images whose worker, child process or Redis is killed during processing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.process.image_rig import ImageStage
from tests.process.workflow_rig import AofRedis
from tests.support.backends import BUNDLED, require_binary
from tests.worker.features.images.kit import photo
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

#: Crash points by stage, in the order they are written; then before and after the result.
CRASH_POINTS = {
    "validating": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:1",
    "encoding": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:4",
    "uploading": f"{CrashPoint.AFTER_IMAGE_STAGE.value}:5",
    "stored": CrashPoint.BEFORE_IMAGE_RESULT.value,
    "published": CrashPoint.AFTER_IMAGE_RESULT.value,
}


@pytest.fixture
def aof() -> Iterator[AofRedis]:
    server = AofRedis(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def stage(aof: AofRedis, spawn: Callable[..., Process], tmp_path: Path) -> Iterator[ImageStage]:
    made = ImageStage(aof.url, spawn, tmp_path)
    yield made
    made.close()


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_kill_9_of_the_worker(stage: ImageStage, point: str) -> None:
    doomed = stage.worker("doomed", **{CRASH_VARIABLE: CRASH_POINTS[point]})
    image_id = stage.upload(photo(size=(3000, 2000)))
    assert doomed.wait() == -signal.SIGKILL
    before = stage.record(image_id)
    assert (before["stage"] == "done") == (point == "published")
    assert len(stage.entries(image_id)) == int(point == "published")
    stage.worker("heir")
    image = stage.check_complete(image_id)
    # A second attempt computes the same, and the result is published once.
    assert len(stage.entries(image_id)) == 1
    wait_until(lambda: stage.client.xpending("jobs:stream", "workers")["pending"] == 0)  # type: ignore[index]
    job = stage.client.hgetall(f"job:{image['job_id']}")
    assert job[b"status"] == b"done"  # type: ignore[index]


def test_kill_9_of_a_child_costs_one_attempt(stage: ImageStage) -> None:
    worker = stage.worker("w1", worker_handlers="slow_images")
    image_id = stage.upload(photo())
    stage.wait_for_starts()
    [child] = children_of(worker.pid)
    stage.go()
    os.kill(child, signal.SIGKILL)
    stage.check_complete(image_id)
    assert worker.popen.poll() is None


def test_a_child_does_not_outlive_its_worker(stage: ImageStage) -> None:
    worker = stage.worker("w1", worker_handlers="slow_images")
    image_id = stage.upload(photo())
    stage.wait_for_starts()
    [child] = children_of(worker.pid)
    worker.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    stage.go()
    stage.worker("w2")
    stage.check_complete(image_id)


def test_a_stopping_worker_releases_its_images(stage: ImageStage) -> None:
    first = stage.worker("w1", worker_handlers="slow_images", shutdown_grace_s=0.2)
    ids = [stage.upload(photo(seed=seed)) for seed in range(3)]
    stage.wait_for_starts(2)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    stage.go()
    stage.worker("w2")
    for image_id in ids:
        stage.check_complete(image_id)


def test_images_survive_a_killed_redis(stage: ImageStage, aof: AofRedis) -> None:
    stage.worker("w1", worker_handlers="slow_images")
    ids = [stage.upload(photo(seed=seed)) for seed in range(3)]
    stage.wait_for_starts(2)
    aof.kill()
    stage.go()
    aof.start()
    wait_until(lambda: stage.request("GET", f"/v1/images/{ids[0]}")[0] == 200)
    for image_id in ids:
        stage.check_complete(image_id)


def test_a_lost_job_fails_its_image(stage: ImageStage) -> None:
    """Redis has lost the job, so it would never be run again."""
    image_id = stage.upload(photo())
    job_id = stage.client.hget(f"image:record:{image_id}", "job_id").decode()  # type: ignore[union-attr]
    stage.client.delete(f"job:{job_id}", f"job:{job_id}:lease")
    stage.client.xtrim("jobs:stream", maxlen=0, approximate=False)
    stage.worker("w1")
    image = stage.ended(image_id)
    assert (image["status"], image["error_code"]) == ("failed", "INTERNAL_ERROR")
    wait_until(lambda: stage.spooled() == [])
