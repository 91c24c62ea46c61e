"""`sluice config`: values and where they come from."""

from __future__ import annotations

import json
from pathlib import Path

from client.exits import Exit
from common.settings import GatewaySettings, WorkerSettings
from tests.cli.rig import run


def explained(*words: str, **settings: str) -> dict[tuple[str, str], dict[str, str]]:
    ran = run("config", "explain", "-o", "json", *words, **settings)
    assert ran.code == 0, ran
    return {(each["process"], each["name"]): each for each in json.loads(ran.out)}


def test_every_setting_of_both_processes() -> None:
    found = explained()
    assert {name for process, name in found if process == "gateway"} == {
        name.upper() for name in GatewaySettings.model_fields
    }
    assert {name for process, name in found if process == "worker"} == {
        name.upper() for name in WorkerSettings.model_fields
    }
    assert found["gateway", "PORT"]["value"] == "8080"
    assert found["gateway", "PORT"]["origin"] == "default"
    assert found["gateway", "REDIS_URL"]["value"] == "unset"


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "redis_url").write_text("unix:///run/redis.sock\n")
    found = explained(PORT="9000", CREDENTIALS_DIRECTORY=str(tmp_path), MAX_INFLIGHT="")
    assert found["gateway", "PORT"]["origin"] == "environment"
    assert found["gateway", "PORT"]["default"] == "8080"
    assert found["worker", "REDIS_URL"]["origin"] == "credential"
    assert found["worker", "MAX_INFLIGHT"]["origin"] == "default"
    assert set(explained("--changed", PORT="9000")) == {("gateway", "PORT")}


def test_no_secret_is_shown() -> None:
    ran = run(
        "config",
        "explain",
        MODEL_API_KEY="hunter2",
        REDIS_URL="redis://me:hunter2@localhost:6379",
    )
    assert ran.code == 0
    assert "hunter2" not in ran.out
    assert "redis://me:***@localhost" in ran.out


def test_one_by_name_with_its_meaning() -> None:
    ran = run("config", "explain", "port", PORT="9000")
    first, default, meaning = ran.out.splitlines()
    assert "9000" in first
    assert "[environment; gateway]" in first
    assert "default: 8080" in default
    assert "Port to listen on" in meaning
    assert run("config", "explain", "PORT", "-q").out == "8080\n"
    slip = run("config", "explain", "MAX_INFLIHGT")
    assert slip.code == Exit.USAGE
    assert "perhaps MAX_INFLIGHT" in slip.err


def test_check() -> None:
    assert run("config", "check").code == Exit.OK
    ran = run("config", "check", BLOCK_MS="0")
    assert (ran.code, ran.out) == (Exit.FAILED, "")
    assert "worker: BLOCK_MS" in ran.err
    told = json.loads(run("config", "check", "-o", "json", BLOCK_MS="0").out)
    assert told["ok"] is False
    assert set(told["faults"]) == {"worker"}
    assert run("config", "check", "--process", "gateway", BLOCK_MS="0").code == Exit.OK
