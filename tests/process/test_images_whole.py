"""Images through a real gateway and real workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.process.image_rig import STAGES, ImageStage
from tests.support.backends import RealServer
from tests.worker.features.images.kit import photo
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def stage(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> Iterator[ImageStage]:
    made = ImageStage(server.url, spawn, tmp_path)
    yield made
    made.close()


class Poller(threading.Thread):
    """Reads status and results of an image as fast as it can, until it has ended."""

    def __init__(self, stage: ImageStage, image_id: str) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self._image_id = image_id
        self.observed: list[tuple[str, int]] = []
        self.done_without_entry = 0

    def run(self) -> None:
        while True:
            shown = self._stage.record(self._image_id)
            at = shown["stage"], int(shown["progress"])
            if at not in self.observed[-1:]:
                self.observed.append(at)
            if at[0] == "done":
                self.done_without_entry += not self._stage.entries(self._image_id)
            if at[0] in ("done", "failed"):
                return
            time.sleep(0.0005)


def test_stages_are_in_order_and_done_has_a_result(stage: ImageStage) -> None:
    stage.worker("w1")
    observed: list[list[tuple[str, int]]] = []
    for seed in range(4):
        image_id = stage.create()
        poller = Poller(stage, image_id)
        poller.start()
        assert stage.put(image_id, photo(seed=seed, size=(2400, 1800))) == 202
        stage.check_complete(image_id)
        poller.join(60)
        assert poller.done_without_entry == 0
        assert poller.observed == sorted(poller.observed, key=lambda at: STAGES[at[0]])
        assert all(STAGES[name] == progress for name, progress in poller.observed)
        assert {"queued", "done"} <= {name for name, _ in poller.observed}
        observed.append(poller.observed)
    assert max(map(len, observed)) >= 5, observed  # a stalled machine may miss some stages


def test_the_job_has_progress_events_and_the_result(stage: ImageStage) -> None:
    stage.worker("w1")
    image_id = stage.create()
    status, _, body = stage.request("PUT", f"/v1/images/{image_id}/upload", photo(), "image/jpeg")
    assert status == 202
    job_id = json.loads(body)["job_id"]
    image = stage.check_complete(image_id)
    status, _, stream = stage.request("GET", f"/v1/jobs/{job_id}/events")
    assert status == 200
    lines = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: ")]
    data: list[Any] = [json.loads(line) for line in lines]
    stages = [each["data"]["stage"] for each in data if "stage" in (each.get("data") or {})]
    assert stages == [*STAGES][1:-1]
    job = json.loads(stage.request("GET", f"/v1/jobs/{job_id}")[2])
    assert job["result"]["sha256"] == image["sha256"]
    assert job["result"]["details"]["source_format"] == "jpeg"


def test_one_of_twenty_uploads_of_an_image_is_accepted(stage: ImageStage) -> None:
    stage.worker("w1")
    image_id = stage.create()
    photos = [photo(seed=seed) for seed in range(20)]
    with ThreadPoolExecutor(20) as threads:
        statuses = list(threads.map(lambda data: stage.put(image_id, data), photos))
    assert sorted(statuses) == [202] + [409] * 19
    stage.check_complete(image_id)
    assert stage.put(image_id, photos[0]) == 409


def test_twenty_images_at_once_on_two_workers(stage: ImageStage) -> None:
    stage.worker("w1")
    stage.worker("w2")
    with ThreadPoolExecutor(20) as threads:
        ids = list(threads.map(lambda seed: stage.upload(photo(seed=seed)), range(20)))
    assert len({stage.check_complete(image_id)["sha256"] for image_id in ids}) == 20


def test_an_image_is_deleted_while_it_is_processed(stage: ImageStage) -> None:
    worker = stage.worker("w1", worker_handlers="slow_images")
    image_id = stage.upload(photo())
    stage.wait_for_starts()
    assert stage.request("DELETE", f"/v1/images/{image_id}")[0] == 204
    stage.go()
    wait_until(lambda: stage.client.xpending("jobs:stream", "workers")["pending"] == 0)  # type: ignore[index]
    wait_until(lambda: stage.spooled() == [])
    assert stage.stored(image_id) is None
    assert stage.entries(image_id) == []
    assert stage.request("GET", f"/v1/images/{image_id}")[0] == 404
    assert stage.client.keys("image:record:*") == []
    # The worker continues with the next image.
    stage.check_complete(stage.upload(photo()))
    assert worker.popen.poll() is None


def test_a_bad_image_can_be_uploaded_again(stage: ImageStage) -> None:
    stage.worker("w1")
    image_id = stage.upload(b"this is no image", "image/jpeg")
    image = stage.ended(image_id)
    assert (image["status"], image["error_code"]) == ("failed", "VALIDATION_FAILED")
    assert stage.request("POST", f"/v1/images/{image_id}/retry-upload")[0] == 200
    assert stage.put(image_id, photo()) == 202
    assert stage.ended(image_id)["status"] == "processed"
    assert [entry["status"] for entry in stage.entries(image_id)] == ["failed", "processed"]


def test_an_echo_worker_refuses_images(stage: ImageStage) -> None:
    stage.worker("w1", "worker.echo_worker")
    image = stage.ended(stage.upload(photo()))
    assert (image["status"], image["error_code"]) == ("failed", "INTERNAL_ERROR")
    assert "python -m worker" in image["error"]


def test_a_missing_configured_detector_stops_the_worker(
    stage: ImageStage, spawn: Callable[..., Process], server: RealServer, tmp_path: Path
) -> None:
    worker = spawn(
        "worker",
        redis_url=server.url,
        image_detector="centerface",
        sluice_models_dir=tmp_path / "none",
    )
    assert worker.wait() == 78
    assert "sluice model install --only faces" in worker.log
