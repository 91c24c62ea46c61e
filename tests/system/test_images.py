"""An image passes two sandboxes: uploaded in one, processed in the other."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import missing
from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, ask, assert_no_warnings, curl, replace_worker

IMAGES = f"{URL}/v1/images"
UNIT = "redis-worker@pixels"
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
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
    replace_worker(machine, UNIT)
    machine.run(f'{PYTHON} -c "{DRAW}"')
    return machine


def process(machine: Machine) -> dict[str, Any]:
    created = ask(machine, f"{IMAGES} -X POST")
    answer = ask(machine, f"{URL}{created['upload_url']} -T {PHOTO} -H 'Content-Type: image/jpeg'")
    assert answer["status"] == "processing", answer

    def reached() -> dict[str, Any] | None:
        image = ask(machine, f"{IMAGES}/{created['image_id']}")
        assert image["status"] in ("processing", "processed"), image
        return image if image["status"] == "processed" else None

    found = machine.wait_for(reached, TIMEOUT_S, f"{created['image_id']} to be processed")
    assert found is not None
    return found


def test_a_photograph_is_processed_and_deleted(image_machine: Machine) -> None:
    machine, image = image_machine, process(image_machine)
    assert (image["processed_width"], image["processed_height"]) == (1920, 1440)
    url = f"{IMAGES}/{image['image_id']}"
    machine.run(f"curl -sSf -o /root/got.webp {url}/content")
    assert machine.run("sha256sum /root/got.webp").stdout.split()[0] == image["sha256"]
    assert "Secret Camera" in machine.run(f"strings {PHOTO} || cat -v {PHOTO}").stdout
    assert "Secret" not in machine.run("cat -v /root/got.webp").stdout
    # The upload is removed, the result is private, and the gateway may delete it.
    machine.wait_for(
        lambda: not machine.run(f"find {SHARED}/spool -type f").stdout, 30, "an empty spool"
    )
    modes = machine.run(f"find {SHARED} -type f -printf '%m %g\\n'").stdout.split("\n")
    assert {line for line in modes if line} <= {"640 sluice", "660 sluice"}
    assert machine.run(f"runuser -u nobody -- ls {SHARED}", code=None).code != 0
    files = f"find {SHARED} -name '{image['image_id']}*'"
    assert machine.run(files).stdout
    assert curl(machine, f"-X DELETE -w '%{{http_code}}' {url}") == "204"
    assert not machine.run(files).stdout


HIDE = """
import ctypes, os
from sluice.worker.execution.process_pool.confine import hide_credentials
directory = os.environ['CREDENTIALS_DIRECTORY']
path = directory + '/redis_url'
open(path).close()
print('version', ctypes.CDLL(None).syscall(444, None, 0, 1))
hide_credentials(directory)
try:
    open(path).close()
    print('readable')
except PermissionError:
    print('hidden')
"""


def test_the_unit_lets_a_process_hide_its_credentials(image_machine: Machine) -> None:
    """With the system calls and the user of the unit."""
    machine = image_machine
    unit = (UNITS / "redis-worker@.service").read_text().splitlines()
    names = ("SystemCall", "NoNewPrivileges", "User", "Group", "LoadCredential", "PrivateUsers")
    options = " ".join(f"-p {shlex.quote(line)}" for line in unit if line.startswith(names))
    command = f"systemd-run --quiet --pipe --wait {options} {PYTHON} -c {shlex.quote(HIDE)}"
    has_landlock = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1) > 0)"
    found = machine.run(
        f"systemd-run --quiet --pipe --wait {PYTHON} -c {shlex.quote(has_landlock)}"
    )
    if found.stdout.strip() != "True":
        missing("the kernel has no Landlock")
    assert machine.run(command).stdout.split("\n")[1:] == ["hidden", ""]


def test_no_redis_command_was_denied(image_machine: Machine) -> None:
    assert_no_warnings(image_machine, UNIT, GATEWAY)
