"""Samples as stream entries, and how they are merged."""

from __future__ import annotations

import pytest

from common.contracts.stats import COUNT_FIELDS, HISTOGRAM_FIELDS, TOTAL_FIELDS, StatsField
from gateway.observability.history.samples import Sample, merge_samples
from tests.gateway.observability.history.kit import START, sample


def entry(one: Sample) -> dict[bytes, bytes]:
    flat = [text.encode() for text in one.encode()]
    return dict(zip(flat[::2], flat[1::2]))


def test_encoded_sample_can_be_decoded() -> None:
    whole = sample(START, {3: 4}, depth=5, temperature_c=61.5, gpu_load=0.25, done=0)
    fields = entry(whole)
    assert list(fields) == [field.value.encode() for field in StatsField], (
        "every entry has the same fields"
    )
    found = Sample.decode(f"{START}-0".encode(), fields)
    assert found.ts == START
    assert found.values == whole.values
    assert StatsField.ERROR not in found.values, "unknown is not zero"
    assert found.spreads == {StatsField.END_TO_END: {3: 4}}


@pytest.mark.parametrize("raw", [b"x", b"nan", b"inf", b"\xff", b"1e999"])
def test_invalid_fields_are_ignored(raw: bytes) -> None:
    found = Sample.decode(b"5-0", {b"depth": raw, b"done": b"2", b"unknown": b"3"})
    assert found == Sample(5, {StatsField.DONE: 2}, {})


def test_merged_sample_has_sums_worst_values_and_totals() -> None:
    first = sample(START, {1: 2}, done=2, depth=9, done_total=10, available_bytes=100)
    second = sample(START + 1000, {1: 1, 2: 5}, done=3, depth=1, done_total=13, available_bytes=70)
    third = sample(START + 2000, depth=4)
    whole = merge_samples(START, [first, second, third])
    assert whole.ts == START
    assert whole.values == {
        StatsField.DONE: 5,
        StatsField.DEPTH: 9,
        StatsField.DONE_TOTAL: 13,
        StatsField.AVAILABLE_BYTES: 70,
    }
    assert whole.spreads[StatsField.END_TO_END] == {1: 3, 2: 5}


def test_merged_sample_has_every_field() -> None:
    plain = [field for field in StatsField if field not in HISTOGRAM_FIELDS]
    whole = merge_samples(START, [Sample(START, dict.fromkeys(plain, 1), {})])
    assert set(whole.values) == set(plain)
    assert not set(COUNT_FIELDS) & set(TOTAL_FIELDS)
