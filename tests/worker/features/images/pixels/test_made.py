"""Facts reported about a processed image."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from common.contracts.images import Stage
from tests.support import photos
from tests.support.photos import FORMATS, photograph
from tests.worker.features.images.pixels.kit import LIMITS, Make, near
from tests.worker.processes import ROOT
from worker.execution.process_pool.pool import ProcessPool
from worker.features.images.pixels import pipeline, process
from worker.features.images.pixels.types import InvalidImage, ProcessingRequest


def test_hashes_and_sizes_are_those_of_the_file(make: Make) -> None:
    made, webp = make(photograph())
    assert made.sha256 == hashlib.sha256(webp).hexdigest()
    assert made.md5 == hashlib.md5(webp).hexdigest()
    assert made.size_bytes == len(webp)
    assert (made.width, made.height) == (640, 480)


@pytest.mark.parametrize("kind", FORMATS)
def test_processing_is_deterministic(make: Make, kind: str) -> None:
    first, second = make(photograph(kind)), make(photograph(kind))
    assert first.webp == second.webp
    for made in (first.made, second.made):
        assert made.details.pop("timings_ms").keys() == {
            "validating", "decoding", "processing", "encoding",
        }  # fmt: skip
    assert first.made == second.made


def test_details_are_json(make: Make) -> None:
    details = make(photograph("png"), detect=True).made.details
    assert json.loads(json.dumps(details)) == details
    assert set(details) == {
        "source_format", "source_frames", "has_alpha", "detector", "detections", "blur",
        "thumbhash", "dominant_color", "timings_ms",
    }  # fmt: skip
    assert (details["detector"], details["detections"]) == ("none", [])


def test_dominant_color(make: Make) -> None:
    image = Image.new("RGB", (400, 300), (20, 120, 200))
    image.paste((250, 250, 0), (0, 0, 100, 300))
    found = make(photos.encoded(image, "png")).made.details["dominant_color"]
    assert near(tuple(bytes.fromhex(found[1:])), (20, 120, 200), 3)


def test_dominant_color_ignores_transparent_pixels(make: Make) -> None:
    image = Image.new("RGBA", (100, 100), (255, 0, 0, 0))
    image.paste((0, 0, 250, 255), (0, 0, 20, 20))
    found = make(photos.encoded(image, "png")).made.details["dominant_color"]
    assert near(tuple(bytes.fromhex(found[1:])), (0, 0, 250), 3)
    nothing = Image.new("RGBA", (9, 9), (255, 0, 0, 0))
    assert make(photos.encoded(nothing, "png")).made.details["dominant_color"] == "#000000"


def test_the_detector_gets_the_final_pixels_and_may_change_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.features.images.detect.choice import Detector, DetectorChoice

    seen: list[tuple[str, tuple[int, int]]] = []

    def blurs(choice: DetectorChoice, image: Image.Image) -> tuple[str, list[dict[str, object]]]:
        seen.append((image.mode, image.size))
        image.paste((255, 0, 255), (0, 0, *image.size))
        return choice.name, [{"kind": "face"}]

    monkeypatch.setattr(pipeline, "find_and_blur", blurs)
    choice = DetectorChoice(Detector.CENTERFACE, "model.onnx")
    made, _ = result = make(photograph("jpeg", 6, 2400, 1800), detect=True, detector=choice)
    assert seen == [("RGB", (1920, 1440))]
    details = made.details
    assert (details["detector"], details["detections"]) == ("centerface", [{"kind": "face"}])
    assert details["blur"] == "pixelate"
    assert near(result.pixel(0.5, 0.5), (255, 0, 255), 8)
    assert near(tuple(bytes.fromhex(details["dominant_color"][1:])), (255, 0, 255), 3)


async def test_stages_are_noted_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(photograph())
    pool = ProcessPool(1)
    try:
        order = ProcessingRequest(
            str(tmp_path / "upload"), str(tmp_path / "out.webp"), "image/jpeg", LIMITS
        )
        heard: list[object] = []
        made = await pool.run(process, order, on_note=heard.append)
        stages = [Stage.VALIDATING, Stage.DECODING, Stage.PROCESSING, Stage.ENCODING]
        assert heard == stages
        assert made.size_bytes == (tmp_path / "out.webp").stat().st_size
        heard.clear()
        (tmp_path / "upload").write_bytes(photograph()[:2000])
        with pytest.raises(InvalidImage):
            await pool.run(process, order, on_note=heard.append)
        assert heard == stages[:2]
    finally:
        await pool.close()


def test_requests_can_be_built_without_pillow() -> None:
    """Pillow is an extra that only the processes of the pool need."""
    script = (
        "import sys; import worker.features.images.pixels, worker.features.images.pixels.formats; "
        "sys.exit(any(name in sys.modules for name in ('PIL', 'numpy', 'pillow_heif')))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
