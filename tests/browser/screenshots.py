"""Takes the screenshots of the docs: `python -m tests.browser.screenshots docs/screenshots`.

It runs its own server with sample data; only ids and times differ between runs.
"""

from __future__ import annotations

import io
import math
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, expect

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.stats import ONE_SECOND, StatsField, StatsKeys
from tests.browser.support import chromium
from tests.browser.support.dashboard_page import WIDE, DashboardPage, Scheme, open_dashboard_page
from tests.browser.support.live_server import LiveServer, run_server
from tests.browser.support.sample_data import COMMIT_LOG
from tests.support.files import photos

MAX_BYTES = 150 * 1024
COLOURS = 128
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
QUESTIONS = (
    "When does the tide turn?",
    "Put this into one sentence.",
    "What changed since yesterday?",
    "Name three ways to say no.",
    "Is the gate open?",
    "How much rain until Sunday?",
)
ANSWER = "Open the upper gate first, wait until both sides are level, then let the boat in."
FAILURES = (
    "printer 10.0.0.7 is out of paper",
    "printer 10.0.0.9 is out of paper",
    "the lid is open",
)
_MB = 1024 * 1024


class ScreenshotData:
    """Sample data of the screenshots."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        jobs = [server.submit("chat", {"text": words}) for words in QUESTIONS * 4]
        jobs += [
            server.submit("code", {"fail": words, "page": n}) for n, words in enumerate(FAILURES)
        ]
        self.answered = server.submit("plan", {"text": ANSWER, "words": 12})
        server.wait_until_ended(*jobs, self.answered)
        self.running = server.submit("code", {"wait": "/nowhere"}, timeout_s=3600)
        server.submit("embed", {"text": "for tonight"}, delay_s=3600)
        self.workflow = server.start_workflow(COMMIT_LOG)
        for number in range(6):
            server.upload_image(_sunset_photo(number), filename=f"harbour-{number + 1}.jpg")
        self._write_history()

    def _write_history(self) -> None:
        """Replace the few seconds of history by ten minutes of generated samples."""
        ring = StatsKeys(JobKeys().queue).ring(ONE_SECOND)
        client = self.server.redis.client
        [(last, fields)] = client.xrevrange(ring, count=1)
        newest_ms = int(last.split(b"-")[0])
        rng = random.Random(9)
        with client.pipeline() as pipeline:
            pipeline.delete(ring)
            for age in range(ONE_SECOND.length - 1, -1, -1):
                entry = {**fields, **_sample(age, rng)}
                pipeline.xadd(ring, entry, f"{newest_ms - age * ONE_SECOND.step_ms}-0")
            pipeline.execute()


def _sample(age: int, rng: random.Random) -> dict[bytes, str]:
    wave = math.sin(age / 70) + 0.4 * math.sin(age / 17)
    done = max(0, round(14 + 6 * wave + rng.gauss(0, 1.2)))
    backlog = max(0, round(5 + 9 * math.sin(age / 70 + 0.8) + rng.gauss(0, 1)))
    values = {
        StatsField.ACCEPTED: max(0, done + rng.randint(-1, 1)),
        StatsField.DONE: done,
        StatsField.ERROR: int(rng.random() < 0.06),
        StatsField.CANCELED: int(rng.random() < 0.02),
        StatsField.DEPTH: backlog,
        StatsField.RUNNING: min(8, 2 + backlog // 2),
        StatsField.PROMPT_TOKENS: done * 21,
        StatsField.COMPLETION_TOKENS: done * 34,
        StatsField.WORKERS_RSS_BYTES: round((310 + 12 * wave) * _MB),
        StatsField.AVAILABLE_BYTES: round((2900 - 160 * wave) * _MB),
        StatsField.TEMPERATURE_C: round(56 + 3 * math.sin(age / 150) + rng.gauss(0, 0.1), 1),
        StatsField.GPU_LOAD: round(min(1.0, max(0.0, 0.55 + 0.25 * wave + rng.gauss(0, 0.02))), 2),
        StatsField.END_TO_END: f"6:{done // 3},7:{done},8:{done // 4},9:{int(rng.random() < 0.3)}",
    }
    return {name.value.encode(): str(value) for name, value in values.items()}


def _sunset_photo(hour: int) -> bytes:
    """A JPEG of the sun over the sea, lower each hour."""
    image = Image.new("RGB", (640, 460))
    draw = ImageDraw.Draw(image)
    for y in range(460):
        part = y / 300 if y < 300 else (460 - y) / 200
        low, high = ((250, 170 - 14 * hour, 90), (70, 110 - 12 * hour, 190 - 14 * hour))
        draw.line(
            (0, y, 640, y), tuple(round(a * part + b * (1 - part)) for a, b in zip(low, high))
        )
    height = 90 + 36 * hour
    draw.ellipse((360, height, 440, height + 80), (255, 236, 190))
    draw.rectangle((0, 300, 640, 460), (24, 62 - 4 * hour, 92 - 6 * hour))
    for y in range(308, 460, 9):
        draw.line((400 - (y - 290) // 3, y, 400 + (y - 290) // 3, y), (255, 214, 150), 2)
    return photos.encoded(image, "jpeg")


def _submit_job(dashboard: DashboardPage) -> None:
    dashboard.page.get_by_role("button", name="Submit").click()
    expect(dashboard.page.locator("main .badge").first).to_have_text("done")


def _open_first_group(dashboard: DashboardPage) -> None:
    dashboard.page.locator("details.group summary").first.click()
    expect(dashboard.page.locator("details.group tbody tr").first).to_be_visible()


def _wait_for_proposals(dashboard: DashboardPage) -> None:
    rows = dashboard.page.locator("ol.review > li")
    expect(rows.nth(6)).to_be_visible()


def _no_preparation(dashboard: DashboardPage) -> None:
    """Take the page as it is."""


def pages(data: ScreenshotData) -> dict[str, tuple[str, Callable[[DashboardPage], None]]]:
    """By name of the screenshot: path of the page, and what to do before it is taken."""
    return {
        "overview": ("/ui", _no_preparation),
        "jobs": ("/ui/jobs", _no_preparation),
        "job": (f"/ui/jobs/{data.answered}", _no_preparation),
        "playground": ("/ui/playground?task=chat", _submit_job),
        "dead-letters": ("/ui/dead", _open_first_group),
        "review": (f"/ui/workflows/{data.workflow}", _wait_for_proposals),
        "images": ("/ui/images", _no_preparation),
        "queues": ("/ui/queues", _no_preparation),
        "doctor": ("/ui/doctor", _no_preparation),
    }


def take(browser: Browser, server: LiveServer, directory: Path) -> list[Path]:
    data = ScreenshotData(server)
    taken = []
    with ExitStack() as stack:
        dashboards = {
            scheme: stack.enter_context(
                open_dashboard_page(browser, server.url, scheme=scheme, size=WIDE)
            )
            for scheme in SCHEMES
        }
        for name, (path, prepare) in pages(data).items():
            for scheme, dashboard in dashboards.items():
                dashboard.open(path)
                prepare(dashboard)
                dashboard.wait_until_idle()
                taken.append(directory / f"{name}-{scheme}.png")
                taken[-1].write_bytes(compress(dashboard.page.screenshot()))
    return taken


def compress(picture: bytes) -> bytes:
    """The picture with a palette; the pages have few colours."""
    output = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(output, "PNG", optimize=True)
    return output.getvalue()


def main(directory: Path) -> int:
    executable = chromium.find_executable()
    if executable is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium.launch(executable) as browser,
        run_server(Path(folder)) as server,
    ):
        for path in take(browser, server, directory):
            print(f"{path} {path.stat().st_size // 1024} KB", file=sys.stderr)
            assert path.stat().st_size <= MAX_BYTES, path
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
