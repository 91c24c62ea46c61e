"""The pictures in the docs: `python -m tests.browser.screenshots docs/screenshots`.

A site of its own, as it would be on a working day; the same each time but for ids and times.
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

from common.contracts.jobs import JobKeys
from common.contracts.stats import SECONDS, StatsField, StatsKeys
from tests import photos
from tests.browser import chromium
from tests.browser.furniture import LOG
from tests.browser.site import Site, running
from tests.browser.view import WIDE, Scheme, View, viewing

LARGEST_BYTES = 150 * 1024
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


class Day:
    """What is there to be seen."""

    def __init__(self, site: Site) -> None:
        self.site = site
        jobs = [site.submit("chat", {"text": words}) for words in QUESTIONS * 4]
        jobs += [
            site.submit("code", {"fail": words, "page": n}) for n, words in enumerate(FAILURES)
        ]
        self.answered = site.submit("plan", {"text": ANSWER, "words": 12})
        site.ended(*jobs, self.answered)
        self.running = site.submit("code", {"wait": "/nowhere"}, timeout_s=3600)
        site.submit("embed", {"text": "for tonight"}, delay_s=3600)
        self.workflow = site.workflow(LOG)
        for number in range(6):
            site.image(_evening(number), filename=f"harbour-{number + 1}.jpg")
        self._write_history()

    def _write_history(self) -> None:
        """Ten minutes that went by, in the place of the few seconds that were."""
        ring = StatsKeys(JobKeys().queue).ring(SECONDS)
        client = self.site.redis.client
        [(last, fields)] = client.xrevrange(ring, count=1)
        newest_ms = int(last.split(b"-")[0])
        dice = random.Random(9)
        with client.pipeline() as all_at_once:
            all_at_once.delete(ring)
            for age in range(SECONDS.length - 1, -1, -1):
                entry = {**fields, **_second(age, dice)}
                all_at_once.xadd(ring, entry, f"{newest_ms - age * SECONDS.step_ms}-0")
            all_at_once.execute()


def _second(age: int, dice: random.Random) -> dict[bytes, str]:
    """How one of them was."""
    wave = math.sin(age / 70) + 0.4 * math.sin(age / 17)
    done = max(0, round(14 + 6 * wave + dice.gauss(0, 1.2)))
    backlog = max(0, round(5 + 9 * math.sin(age / 70 + 0.8) + dice.gauss(0, 1)))
    values = {
        StatsField.ACCEPTED: max(0, done + dice.randint(-1, 1)),
        StatsField.DONE: done,
        StatsField.ERROR: int(dice.random() < 0.06),
        StatsField.CANCELED: int(dice.random() < 0.02),
        StatsField.DEPTH: backlog,
        StatsField.RUNNING: min(8, 2 + backlog // 2),
        StatsField.PROMPT_TOKENS: done * 21,
        StatsField.COMPLETION_TOKENS: done * 34,
        StatsField.WORKERS_RSS_BYTES: round((310 + 12 * wave) * _MB),
        StatsField.AVAILABLE_BYTES: round((2900 - 160 * wave) * _MB),
        StatsField.TEMPERATURE_C: round(56 + 3 * math.sin(age / 150) + dice.gauss(0, 0.1), 1),
        StatsField.GPU_LOAD: round(min(1.0, max(0.0, 0.55 + 0.25 * wave + dice.gauss(0, 0.02))), 2),
        StatsField.END_TO_END: f"6:{done // 3},7:{done},8:{done // 4},9:{int(dice.random() < 0.3)}",
    }
    return {name.value.encode(): str(value) for name, value in values.items()}


def _evening(hour: int) -> bytes:
    """The sun over the sea, lower each hour."""
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


def _submitted(view: View) -> None:
    view.page.get_by_role("button", name="Submit").click()
    expect(view.page.locator("main .badge").first).to_have_text("done")


def _opened(view: View) -> None:
    view.page.locator("details.group summary").first.click()
    expect(view.page.locator("details.group tbody tr").first).to_be_visible()


def _decided(view: View) -> None:
    rows = view.page.locator("ol.review > li")
    expect(rows.nth(6)).to_be_visible()


def _nothing(view: View) -> None:
    """The page as it is."""


def pages(day: Day) -> dict[str, tuple[str, Callable[[View], None]]]:
    """Name of the picture, path of the page, and what to do in it first."""
    return {
        "overview": ("/ui", _nothing),
        "jobs": ("/ui/jobs", _nothing),
        "job": (f"/ui/jobs/{day.answered}", _nothing),
        "playground": ("/ui/playground?task=chat", _submitted),
        "dead-letters": ("/ui/dead", _opened),
        "review": (f"/ui/workflows/{day.workflow}", _decided),
        "images": ("/ui/images", _nothing),
        "queues": ("/ui/queues", _nothing),
        "doctor": ("/ui/doctor", _nothing),
    }


def take(browser: Browser, site: Site, directory: Path) -> list[Path]:
    """All pictures, in both schemes."""
    day = Day(site)
    taken = []
    with ExitStack() as stack:
        views = {
            scheme: stack.enter_context(viewing(browser, site.url, scheme=scheme, size=WIDE))
            for scheme in SCHEMES
        }
        for name, (path, prepare) in pages(day).items():
            for scheme, view in views.items():
                view.go(path)
                prepare(view)
                view.settled()
                taken.append(directory / f"{name}-{scheme}.png")
                taken[-1].write_bytes(small(view.page.screenshot()))
    return taken


def small(picture: bytes) -> bytes:
    """The same with few colours; pages have no more."""
    made = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()


def main(directory: Path) -> int:
    program = chromium.found()
    if program is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium.opened(program) as browser,
        running(Path(folder)) as site,
    ):
        for path in take(browser, site, directory):
            print(f"{path} {path.stat().st_size // 1024} KB", file=sys.stderr)
            assert path.stat().st_size <= LARGEST_BYTES, path
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
