"""Baseline for images: Pillow in two processes, nothing else.

`python -m bench.raw_images WIDTH QUALITY`; reads a JSON line with paths and prints a line with the
seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from PIL import Image, ImageOps

PROCESSES = 2


def shrink(path: str, width: int, quality: int) -> None:
    """The minimum: decode at reduced size, apply the orientation, resize, encode."""
    with Image.open(path) as picture:
        picture.draft("RGB", (width, width))
        upright = ImageOps.exif_transpose(picture)
        assert upright is not None
        height = round(upright.height * width / upright.width)
        small = upright.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
        small.save(f"{path}.webp", "WEBP", quality=quality, method=4)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # also ends its processes
    width, quality = int(sys.argv[1]), int(sys.argv[2])
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(int, range(PROCESSES)))  # start the processes before the clock
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            paths = json.loads(line)["paths"]
            started = time.perf_counter()
            pending = [pool.submit(shrink, path, width, quality) for path in paths]
            for each in pending:
                each.result()
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
