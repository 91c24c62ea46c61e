"""Alert rules and Grafana dashboard: every metric exists, and every rule fires exactly when it
should.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.gateway.observability.metrics.collector import METRICS
from tests.support.servers import missing

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "sluice.json"
NAME = re.compile(r"\bgw_[a-z0-9_]+")


def series_of(name: str, kind: str) -> Iterator[str]:
    if kind == "histogram":
        yield from (f"{name}_bucket", f"{name}_sum", f"{name}_count")
    else:
        yield name


KNOWN = {series for metric in METRICS for series in series_of(metric.name, metric.kind)}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    named = {rule["alert"]: rule for rule in found}
    assert len(named) == len(found)
    return named


def expressions() -> list[str]:
    """Every PromQL expression of the dashboard, with variables replaced as in Grafana."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [note["expr"] for note in dashboard["annotations"]["list"] if "expr" in note]
    return [text.replace("$__rate_interval", "1m").replace("$job", ".*") for text in found]


def names_used() -> set[str]:
    texts = [*expressions(), *(rule["expr"] for rule in alerts().values())]
    return {name for text in texts for name in NAME.findall(text)}


def test_every_metric_name_exists() -> None:
    assert len(names_used()) > 30
    assert names_used() <= KNOWN


@pytest.mark.parametrize("name", alerts())
def test_every_rule_has_a_remedy(name: str) -> None:
    rule = alerts()[name]
    assert name.startswith("Sluice")
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert len(rule["annotations"]["description"]) > 30


def test_settings_that_rules_name_exist() -> None:
    fields = {*GatewaySettings.model_fields, *WorkerSettings.model_fields}
    known = {name.upper() for name in fields}
    texts = " ".join(rule["annotations"]["description"] for rule in alerts().values())
    named = set(re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)+\b", texts)) - {"JOB_ID"}
    assert named
    assert named <= known


def test_every_rule_is_documented() -> None:
    document = (ROOT / "docs" / "observability.md").read_text()
    rows = dict(re.findall(r"^\| `(Sluice\w+)` \| (\w+) \|", document, re.MULTILINE))
    assert rows == {name: rule["labels"]["severity"] for name, rule in alerts().items()}


# -- the dashboard -------------------------------------------------------------------------------


def test_the_dashboard_is_complete() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(dashboard)
    assert "id" not in dashboard, "Grafana gives it one"
    found = dashboard["panels"]
    assert len(found) >= 16
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        assert panel["title"]
        assert panel["description"]
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    assert not re.search(r"https?://|localhost|/home/", DASHBOARD.read_text())


# -- promtool ------------------------------------------------------------------------------------


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    tool = shutil.which("promtool")
    if tool is None:
        missing("promtool is not installed")
    done = subprocess.run(
        [str(tool), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_files() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", CONFIG.name, cwd=CONFIG.parent)


def test_promtool_accepts_the_dashboard_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(expressions())]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(path))


WORKER_TASK = '{worker="w",task="chat"}'
#: Per rule: a series, its values on a healthy host, and values that make the rule fire.
SCENARIOS = {
    "SluiceJobsLost": ("gw_jobs_lost_total", "0x100", "0x80 1x20"),
    "SluicePromiseBroken": ("gw_audit_last_violations", "0x100", "0x80 3x20"),
    "SluiceAuditStale": ("gw_audit_last_timestamp_seconds", "0+60x100", "60x100"),
    "SluiceGatewayDown": ('up{job="sluice",instance="a"}', "1x100", "1x80 0x20"),
    "SluiceRedisDown": ("gw_up", "1x100", "1x80 0x20"),
    "SluiceNoWorkers": ("gw_workers", "2x100", "2x80 0x20"),
    "SluiceWorkerHeld": ('gw_worker_holding{worker="w"}', "0x100", "0x60 1x40"),
    "SluiceModelDown": ('gw_model_up{worker="w"}', "1x100", "1x60 0x40"),
    "SluiceJobsReclaimed": (f"gw_jobs_reclaimed_total{WORKER_TASK}", "5x100", "5x80 9x20"),
    "SluiceQueueSlow": ("gw_queue_oldest_age_seconds", "0 5 1 0 30 0x100", "0x80 61+1x20"),
    "SluiceQueueStuck": ("gw_queue_oldest_age_seconds", "0 5 1 0 30 0x100", "0x80 901+1x20"),
    "SluiceBacklogNearLimit": ("gw_queue_depth", "10x100", "10x80 150x20"),
    "SluicePendingStuck": ("gw_queue_pending_oldest_idle_seconds", "12x100", "12x80 61+60x20"),
    "SluiceDeadLettersGrow": ("gw_dlq_depth", "3x100", "3x80 4+1x20"),
    "SluiceJobsFail": (f"gw_jobs_failed_total{WORKER_TASK}", "0+1x100", "0+50x100"),
    "SluiceRedisMemoryHigh": ("gw_redis_memory_ratio", "0.3x100", "0.3x60 0.85x40"),
    "SluiceRedisMemoryFull": ("gw_redis_memory_ratio", "0.3x100", "0.3x60 0.96x40"),
    "SluiceRedisSlow": ("gw_redis_rtt_seconds", "0.001x100", "0.001x60 0.2x40"),
    "SluiceClockSkew": ("gw_clock_skew_seconds", "-0.01x100", "-2x100"),
    "SluiceServerErrors": ('gw_http_requests_total{code="503"}', "0+1x100", "0+100x100"),
    "SluiceTurnsAway": ('gw_http_rejected_total{reason="backpressure"}', "0+1x100", "0+60x100"),
    "SluiceAuthStorm": ('gw_http_rejected_total{reason="auth"}', "0+5x100", "0+120x100"),
    "SluiceLoopLag": ("gw_event_loop_lag_seconds", "0.002x100", "0.5x100"),
    "SluiceWorkerLoopLag": ('gw_worker_event_loop_lag_seconds{worker="w"}', "0.01x100", "2x100"),
    "SluiceSlowClients": ("gw_sse_slow_closed_total", "0+0.1x100", "0+5x100"),
    "SluiceHot": ('gw_temperature_celsius{host="h",sensor="gpu"}', "60x100", "90x100"),
    "SluiceMemoryPressure": ('gw_mem_pressure_full_avg10{host="h"}', "0.1x100", "20x100"),
    "SluiceUnderPressure": ("gw_pressure_state", "0x100", "2x100"),
}
HEALTHY = {
    **{series: values for series, values, _ in SCENARIOS.values()},
    f"gw_jobs_succeeded_total{WORKER_TASK}": "0+99x100",
    'gw_http_requests_total{code="202"}': "0+1000x100",
    "gw_queue_pending": "16x100",
    "gw_queue_backlog_limit": "200x100",
}
#: Rules that fire together, because one is the worse case of the other.
TOGETHER = {
    "SluiceQueueStuck": {"SluiceQueueSlow"},
    "SluiceRedisMemoryFull": {"SluiceRedisMemoryHigh"},
}


def test_every_rule_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(alerts())


def scenario(changes: dict[str, str], firing: set[str]) -> dict[str, Any]:
    """A promtool test: exactly these rules fire."""
    values = {**HEALTHY, **changes}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": value} for name, value in values.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "90m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)
                ],
            }
        ],
    }


@pytest.mark.slow("promtool simulates hours")
def test_rules_fire_exactly_when_they_should(tmp_path: Path) -> None:
    tests = [scenario({}, set())]
    for name, (series, _, trouble) in SCENARIOS.items():
        tests.append(scenario({series: trouble}, {name} | TOGETHER.get(name, set())))
    path = tmp_path / "test.yml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(content))
    promtool("test", "rules", str(path))
