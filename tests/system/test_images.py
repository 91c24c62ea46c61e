"""An image passes two sandboxes: uploaded in one, processed in the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, WORKER, curl

IMAGES = f"{URL}/v1/images"
UNIT = "redis-worker@pixels"
SHARED = "/var/lib/sluice-images"
PYTHON = "/opt/redis-worker/venv/bin/python"
PHOTO = "/root/photo.jpg"
DRAW = (
    "from PIL import Image; picture = Image.radial_gradient('L').resize((2400, 1800)); "
    "exif = Image.Exif(); exif[0x0110] = 'Secret Camera'; "
    f"picture.convert('RGB').save('{PHOTO}', exif=exif)"
)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def image_machine(machine: Machine) -> Machine:
    """A machine with a worker for images, and a photograph."""
    machine.run(f"systemctl disable --now {WORKER} && systemctl enable --now {UNIT}")
    machine.run(f'{PYTHON} -c "{DRAW}"')
    return machine


def ask(machine: Machine, arguments: str) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(curl(machine, arguments))
    return response


def uploaded(machine: Machine) -> str:
    created = ask(machine, f"{IMAGES} -X POST")
    answer = ask(machine, f"{URL}{created['upload_url']} -T {PHOTO} -H 'Content-Type: image/jpeg'")
    assert answer["status"] == "processing", answer
    image_id: str = created["image_id"]
    return image_id


def processed(machine: Machine, image_id: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        image = ask(machine, f"{IMAGES}/{image_id}")
        assert image["status"] in ("processing", "processed"), image
        return image if image["status"] == "processed" else None

    found = machine.wait_for(reached, TIMEOUT_S, f"{image_id} to be processed")
    assert found is not None
    return found


def test_a_photograph_is_resized_and_stripped_of_metadata(image_machine: Machine) -> None:
    image_id = uploaded(image_machine)
    image = processed(image_machine, image_id)
    assert (image["processed_width"], image["processed_height"]) == (1920, 1440)
    image_machine.run(f"curl -sSf -o /root/got.webp {IMAGES}/{image_id}/content")
    digest = image_machine.run("sha256sum /root/got.webp").stdout.split()[0]
    assert digest == image["sha256"]
    assert "Secret Camera" in image_machine.run(f"strings {PHOTO} || cat -v {PHOTO}").stdout
    assert "Secret" not in image_machine.run("cat -v /root/got.webp").stdout


def test_uploads_are_removed_and_results_are_private(image_machine: Machine) -> None:
    image_id = uploaded(image_machine)
    processed(image_machine, image_id)
    image_machine.wait_for(
        lambda: not image_machine.run(f"find {SHARED}/spool -type f").stdout, 30, "an empty spool"
    )
    modes = image_machine.run(f"find {SHARED} -type f -printf '%m %g\\n'").stdout.split("\n")
    assert {line for line in modes if line} <= {"640 sluice", "660 sluice"}
    assert image_machine.run(f"runuser -u nobody -- ls {SHARED}", code=None).code != 0


def test_the_gateway_may_delete_files_of_a_worker(image_machine: Machine) -> None:
    image_id = uploaded(image_machine)
    processed(image_machine, image_id)
    assert image_machine.run(f"find {SHARED} -name '{image_id}*'").stdout
    assert curl(image_machine, f"-X DELETE -w '%{{http_code}}' {IMAGES}/{image_id}") == "204"
    assert not image_machine.run(f"find {SHARED} -name '{image_id}*'").stdout


def test_no_redis_command_was_denied(image_machine: Machine) -> None:
    for unit in (UNIT, GATEWAY):
        complaints = image_machine.journal("-b", "-p", "warning", f"-u{unit}")
        assert complaints in ("", "-- No entries --\n")
