"""The probe of a model server, its announcement file, and `sluice model status`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from sluice.common.settings.base import load_settings
from sluice.ops.http import Fetch, Response
from sluice.ops.model import ModelSetupError
from sluice.ops.model.announcement import Announcement, ServedModel
from sluice.ops.model.probe import ProbeResult, ServerState, probe
from sluice.ops.model.serve import ServeSettings
from sluice.ops.model.status import ModelStatus, ServerStatus, as_json, status, status_lines

OK = Response(200, b'{"status":"ok"}')
MODELS = Response(200, b'{"object":"list","data":[{"id":"small"}]}')
SLOTS = Response(200, b'[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]')
MISSING = Response(404, b"not found")


def server_with(health: Response = OK, models: Response = MODELS, slots: Response = SLOTS) -> Fetch:
    answers = {"/health": health, "/v1/models": models, "/slots": slots}

    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        assert url.startswith("http://host:1/")
        return answers[url.removeprefix("http://host:1")]

    return fetch


@pytest.mark.parametrize("url", ["http://host:1", "http://host:1/", "http://host:1/v1"])
def test_llama_cpp_server(url: str) -> None:
    expected = ProbeResult(ServerState.UP, models=("small",), slots=2, busy=1)
    assert probe(url, fetch=server_with()) == expected


def test_server_without_slots() -> None:
    found = probe("http://host:1", fetch=server_with(health=MISSING, slots=MISSING))
    assert found == ProbeResult(ServerState.UP, models=("small",))


def test_loading_server() -> None:
    loading = Response(503, b'{"error":{"message":"Loading model"}}')
    found = probe("http://host:1", fetch=server_with(health=loading))
    assert found == ProbeResult(ServerState.LOADING, "Loading model")
    found = probe("http://host:1", fetch=server_with(health=Response(503, b"x")))
    assert found.state is ServerState.LOADING


@pytest.mark.parametrize(
    "answer", [MISSING, Response(200, b"<html>"), Response(200, b'{"data":1}')]
)
def test_not_a_model_server(answer: Response) -> None:
    assert probe("http://host:1", fetch=server_with(models=answer)).state is ServerState.STRANGE


def test_server_that_requires_a_key() -> None:
    headers_sent: list[Mapping[str, str]] = []

    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        headers_sent.append(headers)
        return Response(401, b"{}")

    assert probe("http://host:1", "sesame", fetch=fetch).state is ServerState.LOCKED
    assert headers_sent[0] == {"Authorization": "Bearer sesame"}


def test_connection_refused() -> None:
    found = probe("http://127.0.0.1:1", timeout_s=1)
    assert found.state is ServerState.DOWN
    assert "refused" in found.reason


def test_announcement_is_removed_only_by_its_writer(tmp_path: Path) -> None:
    announcement = Announcement(tmp_path / "data")
    announcement.prepare()
    assert announcement.read() is None
    served = ServedModel("http://127.0.0.1:8090", "small", os.getpid())
    announcement.write(served)
    assert announcement.read() == served
    assert json.loads(announcement.path.read_text()) == asdict(served)
    announcement.write(ServedModel(served.url, "another", 1))
    announcement.remove()
    assert announcement.read() is not None
    announcement.write(served)
    announcement.remove()
    assert list(announcement.directory.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url":"u","model":"m","pid":"x"}', "{"])
def test_damaged_announcement_is_ignored(tmp_path: Path, content: str) -> None:
    announcement = Announcement(tmp_path)
    announcement.path.write_text(content)
    assert announcement.read() is None


def test_directory_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelSetupError, match="SLUICE_DATA_DIR"):
        Announcement(tmp_path / "file" / "data").prepare()


def test_status_with_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_URL", raising=False)
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("sluice.ops.model.status.UNIT_DIRECTORY", tmp_path / "none")
    lines = list(status_lines(status(tmp_path, load_settings(ServeSettings))))
    assert [line.split()[0] for line in lines] == [*("engine", "chat", "embed", "faces", "served")]
    assert "sluice model install" in lines[1]
    assert lines[-1] == "served   nothing; run `sluice model serve`"


def test_status_shows_the_origin_of_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path))
    Announcement(tmp_path).write(ServedModel("http://127.0.0.1:1", "small", 1))
    found = status(tmp_path, load_settings(ServeSettings))
    assert found.served is not None
    assert found.served.source == str(tmp_path / "model.json")
    assert list(status_lines(found))[-1].startswith("served   http://127.0.0.1:1 is down: ")
    monkeypatch.setenv("MODEL_URL", "http://127.0.0.1:2")
    named = status(tmp_path, load_settings(ServeSettings)).served
    assert named is not None
    assert (named.url, named.source) == ("http://127.0.0.1:2", "MODEL_URL")


def test_status_of_a_busy_server() -> None:
    headers_sent = ProbeResult(ServerState.UP, models=("small",), slots=2, busy=1)
    found = ModelStatus([], ServerStatus("http://host:1", "MODEL_URL", headers_sent))
    assert list(status_lines(found)) == [
        "served   small at http://host:1, 1 of 2 slots busy (from MODEL_URL)"
    ]
    assert json.loads(as_json(found))["served"]["seen"]["busy"] == 1
