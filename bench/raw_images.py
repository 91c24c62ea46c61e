"""The yardstick for images: Pillow in two processes, and nothing around it.

`python -m bench.raw_images WIDTH QUALITY`; a line of JSON with paths, a line with the seconds.
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
    """As few steps as will do: decode small, turn upright, resize, encode."""
    with Image.open(path) as picture:
        picture.draft("RGB", (width, width))
        upright = ImageOps.exif_transpose(picture)
        assert upright is not None
        height = round(upright.height * width / upright.width)
        small = upright.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
        small.save(f"{path}.webp", "WEBP", quality=quality, method=4)


def main() -> None:
    """Answer one list of files after the other."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # its processes end with it
    width, quality = int(sys.argv[1]), int(sys.argv[2])
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(int, range(PROCESSES)))  # they are there before the clock starts
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            paths = json.loads(line)["paths"]
            started = time.perf_counter()
            made = [pool.submit(shrink, path, width, quality) for path in paths]
            for each in made:
                each.result()
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
