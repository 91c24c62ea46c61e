"""LANES, TENANT_LANES and TENANT_WEIGHTS: their meaning and their validation."""

from __future__ import annotations

import pytest

from common.errors import SettingsError
from common.settings.base import CommonSettings, load_settings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings

BOTH = (GatewaySettings, WorkerSettings)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("lanes", "tenants", "names"),
    [
        ("", 0, ()),
        ("low", 0, ("low",)),
        ("low, high,low", 0, ("high", "low")),
        ("high", 2, ("high", "tenants.0", "tenants.1")),
    ],
)
def test_lanes_are_named_once_and_in_one_order(
    kind: type[CommonSettings], lanes: str, tenants: int, names: tuple[str, ...]
) -> None:
    assert load_settings(kind, lanes=lanes, tenant_lanes=tenants).lane_names == names


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("odd", ["normal", "urgent", "high;low", "HIGH"])
def test_an_unknown_lane_is_refused(
    kind: type[CommonSettings], odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANES", odd)
    with pytest.raises(SettingsError, match=r"LANES=.*is not a lane; write high, low"):
        load_settings(kind)


def test_a_weight_is_a_tenant_and_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANT_WEIGHTS", "acme:99")
    with pytest.raises(SettingsError, match=r"TENANT_WEIGHTS=.*weight of acme must be 1 to 16"):
        load_settings(GatewaySettings)
