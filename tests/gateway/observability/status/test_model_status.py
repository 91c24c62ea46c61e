"""The model check of `/v1/status`, and the model servers in `/v1/workers` and `/metrics`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.contracts.workers import FIRST_TOKEN_BOUNDS, ModelState
from common.observability.heartbeats import Histogram, ModelReading
from common.settings.gateway import GatewaySettings
from gateway.observability.status.checks import Level
from gateway.observability.status.status import ModelCheck, overall, run_checks
from tests.gateway.observability.metrics.test_metrics import beat, scrape, store
from tests.gateway.observability.status.test_status import CALM, HEALTHY
from tests.support.gateway.harness import Gateway

pytestmark = pytest.mark.fakeredis_only


def model(state: ModelState = ModelState.READY, reason: str = "", **more: Any) -> ModelReading:
    return ModelReading(state=state, reason=reason, url="http://box:8090", slots=2, **more)


def check(*readings: ModelReading | None) -> tuple[ModelCheck, Level]:
    workers = [beat(f"w{n}", model=reading) for n, reading in enumerate(readings, 1)]
    checks = run_checks(GatewaySettings(), replace(HEALTHY, workers=workers), 1.0, CALM)
    return checks.model[0], overall(checks)[0]


def test_ready_model_server_passes() -> None:
    found, level = check(model(busy=1), model(busy=2), None, model(ModelState.ABSENT))
    assert (found.number, found.ready, found.busy, found.slots) == (2, 2, 3, 4)
    assert (found.status, found.output, level) == (Level.PASS, None, Level.PASS)


def test_a_model_server_that_is_not_ready_is_a_warning() -> None:
    for state in (ModelState.DOWN, ModelState.LOADING):
        found, level = check(model(state, "Connection refused"), model())
        assert (found.number, found.ready, found.slots) == (2, 1, 2)
        assert (found.status, level) == (Level.WARN, Level.WARN)
        assert found.output == f"w1 ({state.value}): Connection refused"
    down = model(ModelState.DOWN, "Connection refused")
    found, _ = check(down, down, down, model(ModelState.LOADING))
    expected = "w1 and 2 more (down): Connection refused; w4 (loading): no answer"
    assert found.output == expected, "a server of many workers is listed once"
    found, _ = check(model(reason="401: who are you?; is MODEL_API_KEY right?"))
    assert found.status is Level.WARN
    assert found.output == "w1 (ready): 401: who are you?; is MODEL_API_KEY right?"


def test_without_a_model_server_the_check_passes() -> None:
    found = run_checks(GatewaySettings(), None, 1.0, CALM).model[0]
    assert (found.status, found.number) == (Level.PASS, 0)


async def test_model_values_are_in_status_and_metrics(gateway: Gateway) -> None:
    counts = [0] * len(FIRST_TOKEN_BOUNDS) + [2]
    busy = model(
        busy=1,
        name="small",
        answers=7,
        failures=1,
        prompt_tokens=50,
        completion_tokens=20,
        first_token=Histogram(counts=counts, sum=900.0),
    )
    down = model(ModelState.DOWN, "Connection refused")
    await store(
        gateway, beat("w1", model=busy), beat("w2", model=down), beat("w3"),
        beat("w4", model=model(ModelState.ABSENT)),
    )  # fmt: skip
    listed = (await gateway.client.get("/v1/workers")).json()["workers"]
    assert listed[0]["model"]["name"] == "small"
    assert listed[1]["model"]["reason"] == "Connection refused"
    assert listed[2].get("model") is None
    found = await scrape(gateway)
    assert found.labels("gw_model_up") == [{"worker": "w1"}, {"worker": "w2"}]
    assert found.value("gw_model_up", worker="w1") == 1
    assert found.value("gw_model_up", worker="w2") == 0
    assert found.value("gw_model_slots", worker="w1") == 2
    assert found.value("gw_model_busy", worker="w1") == 1
    assert found.value("gw_model_answers_total", worker="w1") == 7
    assert found.value("gw_model_failures_total", worker="w1") == 1
    assert found.value("gw_model_tokens_total", worker="w1", kind="prompt") == 50
    assert found.value("gw_model_tokens_total", worker="w1", kind="completion") == 20
    assert found.value("gw_model_first_token_seconds_count", worker="w1") == 2
