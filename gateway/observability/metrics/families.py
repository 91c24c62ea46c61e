"""Metric definitions, and metric families in the form of prometheus_client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from sluice.common.contracts.jobs import JobField

#: Label names that several modules use.
TASK: Final = JobField.TASK
WORKER: Final = "worker"

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """Definition of one metric family: name, kind, help text and labels. Listed in the docs."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


def metrics_in(module: ModuleType) -> Iterator[Metric]:
    """Every metric that a module defines, as a constant or in a mapping, in order."""
    for value in vars(module).values():
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, Mapping):
            yield from (metric for metric in value.values() if isinstance(metric, Metric))


_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class MetricFamilies:
    """Collects samples by family. Unknown values and empty families are left out."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._found.values())

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        if value is None:
            return
        family = self._found.get(metric.name)
        if family is None:
            family = _KINDS[metric.kind](metric.name, metric.meaning, labels=metric.labels)
            self._found[metric.name] = family
        family.add_metric(labels, value)

    def add_histogram(
        self,
        metric: Metric,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        *labels: str,
    ) -> None:
        """Add a histogram; `counts` are per bucket, not cumulative."""
        family = self._found.get(metric.name)
        if family is None:
            family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            self._found[metric.name] = family
        edges = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(edges, itertools.accumulate(counts)))
        family.add_metric(labels, buckets, total)
