"""One sample: how a second, ten of them or five minutes went. Samples add up to longer ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from common import codec
from common.contracts.stats import COUNTS, SPREADS, TOTALS, StatsField
from gateway.stats import spread

Number = int | float

_FIELDS: Final = tuple(StatsField)
_NAMES: Final = {each.value.encode(): each for each in _FIELDS}
#: How it stood, and so a thing of which the worst is kept.
_GAUGES: Final = tuple(
    each for each in _FIELDS if each not in COUNTS and each not in TOTALS and each not in SPREADS
)
#: Of most things the worst is that there is much of it.
_LEAST: Final = frozenset({StatsField.AVAILABLE_BYTES})


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a time; what is not known is not in it."""

    #: When its time begins, Unix milliseconds.
    ts: int
    values: Mapping[StatsField, Number] = field(default_factory=dict)
    spreads: Mapping[StatsField, spread.Counts] = field(default_factory=dict)

    def encode(self) -> list[str]:
        """As the fields and values of a stream entry."""
        flat: list[str] = []
        for each in _FIELDS:
            flat.append(each.value)
            if each in SPREADS:
                flat.append(spread.encode(self.spreads.get(each, {})))
            else:
                flat.append(_text(self.values.get(each)))
        return flat

    @classmethod
    def decode(cls, entry_id: bytes, fields: Mapping[bytes, bytes]) -> Sample:
        """From a stream entry; odd fields of a foreign writer are left out."""
        values: dict[StatsField, Number] = {}
        spreads: dict[StatsField, spread.Counts] = {}
        for name, raw in fields.items():
            known = _NAMES.get(name)
            if known is None or not raw:
                continue
            if known in SPREADS:
                spreads[known] = spread.decode(codec.text(raw))
            elif (number := _number(raw)) is not None:
                values[known] = number
        position = codec.stream_id(codec.text(entry_id)) or (0, 0)
        return cls(position[0], values, spreads)


def joined(ts: int, samples: Sequence[Sample]) -> Sample:
    """Consecutive samples as one that begins at `ts`.

    What was counted adds up; of how it stood the worst is kept: the most of everything, and of free
    memory the least.
    """
    values: dict[StatsField, Number] = {}
    for each in _FIELDS:
        found = [sample.values[each] for sample in samples if each in sample.values]
        if not found:
            continue
        if each in COUNTS:
            values[each] = sum(found)
        elif each in TOTALS:
            values[each] = found[-1]
        elif each in _GAUGES:
            values[each] = min(found) if each in _LEAST else max(found)
    spreads = {
        each: spread.merged(sample.spreads.get(each, {}) for sample in samples) for each in SPREADS
    }
    return Sample(ts, values, spreads)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _number(raw: bytes) -> Number | None:
    try:
        return int(raw)
    except ValueError:
        pass
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
