"""Number plates by an operator's model, in one of the two forms that detectors are exported in.

Its input is `[1, 3, S, S]`, RGB from 0 to 1, where S is IMAGE_DETECT_SIZE. Its one output is either
`[1, N, 6]` (left, top, right, bottom, score, class: finds that are thinned out already) or
`[1, 4 + C, N]` (middle x, middle y, width, height, then a score for each of C classes), all in
pixels of the square. Whatever class it is, it is a plate.
"""

from __future__ import annotations

from typing import Any, Final

from worker.images.detect.boxes import Box
from worker.images.detect.letterbox import Pixels
from worker.images.detect.nets import ModelUnusable, outputs

LEAST_SCORE: Final = 0.35
_TO_ONE: Final = 1 / 255
#: Columns of the first form; fewest rows of the second.
_FINDS, _LEAST_ROWS = 6, 5


def find(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of plates in a square."""
    found = outputs(path, pixels, _TO_ONE)
    shapes = [tuple(part.shape) for part in found]
    if len(found) == 1 and found[0].ndim == 3 and found[0].shape[0] == 1:
        table = found[0][0]
        if table.shape[1] == _FINDS:
            return _finds(table)
        if table.shape[0] >= _LEAST_ROWS:
            return _candidates(table)
    raise ModelUnusable(
        f"{path} is no model for plates as we can use it: its outputs are {shapes}; one of "
        "[1, N, 6] or [1, 4 + classes, N] is expected"
    )


def _finds(table: Any) -> list[Box]:
    return [Box(*map(float, row[:5])) for row in table if row[4] > LEAST_SCORE]


def _candidates(table: Any) -> list[Box]:
    scores = table[4:].max(axis=0)
    return [
        Box(
            float(x - width / 2),
            float(y - height / 2),
            float(x + width / 2),
            float(y + height / 2),
            float(score),
        )
        for (x, y, width, height), score in zip(table[:4].T, scores)
        if score > LEAST_SCORE
    ]
