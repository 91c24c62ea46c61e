"""Location of the model, and what of it may be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from common.errors import SettingsError
from worker.features.model.endpoint import RESTART_GRACE_S, EndpointLocator, parse_endpoint
from worker.features.model.errors import sanitize_text


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/v1", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/v1/", "http://127.0.0.1:8090"),
        ("https://models.example/llama/v1", "https://models.example/llama"),
        ("https://models.example/llama/", "https://models.example/llama"),
        ("http://[::1]:8090/v1?x=1#y", "http://[::1]:8090"),
        ("http://me:secret@box:11434/v1", "http://box:11434"),
    ],
)
def test_urls(url: str, base: str) -> None:
    endpoint = parse_endpoint(url)
    assert endpoint.base == base
    assert endpoint.url("/health") == f"{base}/health"
    assert endpoint.api("/models") == f"{base}/v1/models"


@pytest.mark.parametrize("url", ["", "box:8090", "ftp://box", "http://"])
def test_invalid_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"example: http://127\.0\.0\.1:8090"):
        parse_endpoint(url)


def test_credentials_go_with_requests_and_are_never_shown() -> None:
    endpoint = parse_endpoint("http://me:hunter2%21@box/v1")
    assert endpoint.headers == {"Authorization": "Basic bWU6aHVudGVyMiE="}
    assert "hunter2" not in repr(endpoint)
    assert "bWU6" not in repr(endpoint)
    endpoint = parse_endpoint("http://me:hunter2@box", SecretStr("k-123"))
    assert endpoint.headers == {"Authorization": "Bearer k-123"}
    assert "k-123" not in repr(endpoint)


def test_server_messages_are_one_line_without_secrets() -> None:
    said = "bad key k-123456789\n\tsent as Bearer k-123456789abc to http://a:b@c/ \x00" + "x" * 3000
    shown = sanitize_text(said, "k-123456789")
    assert "k-123456789" not in shown
    assert "a:b@" not in shown
    assert len(shown) == 501
    assert shown.isprintable()


def announce(directory: Path, **members: object) -> None:
    fresh = directory / "fresh"
    fresh.write_text(json.dumps(members))
    fresh.replace(directory / "model.json")


def test_the_announcement_of_a_served_model(tmp_path: Path) -> None:
    now = [0.0]
    place = EndpointLocator(None, str(tmp_path), clock=lambda: now[0])
    assert place.find() is None
    announce(tmp_path, url="http://127.0.0.1:1", model="small", pid=1)
    first = place.find()
    assert first is not None
    assert (first.base, first.model) == ("http://127.0.0.1:1", "small")
    assert place.find() is first
    announce(tmp_path, url="http://127.0.0.1:22/v1", model="small", pid=2)
    second = place.find()
    assert second is not None
    assert second.base == "http://127.0.0.1:22"
    # A restarting server removes its file for a moment.
    (tmp_path / "model.json").unlink()
    assert place.find() == second
    now[0] += RESTART_GRACE_S - 1
    assert place.find() == second
    announce(tmp_path, url="http://127.0.0.1:3", model="small", pid=3)
    third = place.find()
    assert third is not None
    assert third.base == "http://127.0.0.1:3"
    (tmp_path / "model.json").unlink()
    assert place.find() == third
    now[0] += RESTART_GRACE_S
    assert place.find() is None


def test_settings_override_the_announcement(tmp_path: Path) -> None:
    announce(tmp_path, url="http://127.0.0.1:1", model="small", pid=1)
    named = EndpointLocator(None, str(tmp_path), model="big").find()
    assert named is not None
    assert named.model == "big"
    fixed = EndpointLocator("http://box/v1", str(tmp_path)).find()
    assert fixed is not None
    assert (fixed.base, fixed.model) == ("http://box", "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 3}', '{"url": "x"}', "null"])
def test_an_invalid_announcement(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    place = EndpointLocator(None, str(tmp_path))
    assert place.find() is None
    announce(tmp_path, url="http://127.0.0.1:1", model=3, pid=1)
    found = place.find()
    assert found is not None
    assert found.model == ""


def test_a_trailing_newline_of_a_key_is_removed() -> None:
    assert parse_endpoint("http://box", SecretStr("k-123\n")).headers == {
        "Authorization": "Bearer k-123"
    }


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", "a\x00b"])
def test_a_key_that_fits_in_no_header(key: str) -> None:
    with pytest.raises(SettingsError, match="EMBED_API_KEY") as caught:
        parse_endpoint("http://box", SecretStr(key), setting="EMBED")
    assert key not in str(caught.value)
