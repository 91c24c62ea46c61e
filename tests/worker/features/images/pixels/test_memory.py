"""Memory used by the process for an image."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sluice.worker.execution.process_pool.errors import OutOfMemory
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.features.images.pixels import process
from sluice.worker.features.images.pixels.types import (
    InvalidImage,
    ProcessingRequest,
    ProcessingResult,
)
from tests.support.files import bad_photos, photos
from tests.support.files.pixels import LIMITS

#: The same as in the worker.
MEMORY_BYTES = 1536 * 1024 * 1024


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool(1, memory_bytes=MEMORY_BYTES)
    yield made
    await made.close()


def big_jpeg(across: int, down: int, **options: object) -> bytes:
    """Tiles of 1000 x 800 pixels: expensive to decode, cheap to create."""
    tiles = np.tile(np.asarray(photos.scene(1000, 800)), (down, across, 1))
    return photos.encoded(Image.fromarray(tiles), "jpeg", quality=85, **options)


def status(pid: int, name: str) -> int:
    """A value of /proc/PID/status, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) // 1024
    raise AssertionError(name)


def cpu_s(pid: int) -> float:
    """CPU time of a process, independent of waiting time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def processed(pool: ProcessPool, folder: Path, data: bytes) -> ProcessingResult:
    (folder / "upload").write_bytes(data)
    order = ProcessingRequest(str(folder / "upload"), str(folder / "out.webp"), "", LIMITS)
    return await pool.run(process, order, timeout_s=60)


@pytest.mark.slow("creates and processes images of 24 megapixels")
@pytest.mark.parametrize("options", [{}, {"progressive": True, "subsampling": 0}])
async def test_24_megapixels_fit_in_250_mb_and_are_given_back(
    pool: ProcessPool, tmp_path: Path, options: dict[str, object]
) -> None:
    made = await processed(pool, tmp_path, big_jpeg(6, 5, **options))
    assert (made.original_width, made.width) == (6000, 1920)
    [pid] = pool.pids
    assert status(pid, "VmHWM") <= 250
    assert status(pid, "VmRSS") <= 120


async def test_a_decompression_bomb_does_not_grow_the_process(
    pool: ProcessPool, tmp_path: Path
) -> None:
    await processed(pool, tmp_path, photos.photograph())
    [pid] = pool.pids
    before = status(pid, "VmHWM")
    for bomb in (bad_photos.png_bomb_by_header(), bad_photos.real_png_bomb()):
        used_s = cpu_s(pid)
        with pytest.raises(InvalidImage, match="image dimensions exceed limit"):
            await processed(pool, tmp_path, bomb)
        assert cpu_s(pid) - used_s < 1.0
    assert pool.pids == [pid]
    assert status(pid, "VmHWM") - before <= 2


async def test_too_much_memory_affects_only_that_image(tmp_path: Path) -> None:
    pool = ProcessPool(1, memory_bytes=256 * 1024 * 1024)
    try:
        made = await processed(pool, tmp_path, photos.photograph())
        with pytest.raises(OutOfMemory):
            await processed(pool, tmp_path, bad_photos.real_png_bomb(7_000, 7_000, 4))
        again = await processed(pool, tmp_path, photos.photograph())
        assert again.sha256 == made.sha256
    finally:
        await pool.close()


@pytest.mark.slow("processes twelve large images")
async def test_memory_does_not_grow_over_many_images(pool: ProcessPool, tmp_path: Path) -> None:
    source = big_jpeg(2, 2)
    sizes = []
    for _ in range(12):
        await processed(pool, tmp_path, source)
        [pid] = pool.pids
        sizes.append(status(pid, "VmRSS"))
    assert max(sizes[6:]) - max(sizes[:6]) <= 8
