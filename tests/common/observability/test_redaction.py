"""Secrets are masked in every log line; everything else is unchanged."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from common.observability.logs import JsonFormatter, MessageFormatter, TextFormatter, mask

KEY = "sluice_ab12cd34_9fKsPq7ZrT0vWx8yAa1Bb2Cc3Dd4Ee5Ff6Gg7Hh"
SECRET = "9fKsPq7ZrT0vWx8yAa1Bb2Cc3Dd4Ee5Ff6Gg7Hh"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"key {KEY} is unknown", "key sluice_ab12cd34_*** is unknown"),
        (f"Authorization: Bearer {KEY}", "Authorization: ***"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: ***"),
        ("{'Authorization': 'Bearer abcdefgh', 'x': 1}", "{'Authorization': '***', 'x': 1}"),
        ("(b'authorization', b'Bearer abcdefgh')", "(b'authorization', b'***')"),
        ("sent Bearer abcdefghijk to it", "sent Bearer *** to it"),
        ("redis://worker:hunter2@127.0.0.1:6379/0 is away", "redis://worker:***@127.0.0.1:6379/0"
         " is away"),
        ("unix://:hun/ter@2@/run/redis.sock", "unix://:***@/run/redis.sock"),
        ("'rediss://:pw@host' and 'redis://host:6379'", "'rediss://:***@host' and "
         "'redis://host:6379'"),
        ("unix:///run/redis.sock?db=1&password=hun@ter2&x=1 is away",
         "unix:///run/redis.sock?db=1&password=***&x=1 is away"),
        (f"http://host/?key={KEY}&next=redis://me:hunter2@host",
         "http://host/?key=sluice_ab12cd34_***&next=redis://me:***@host"),
        ('authorization: Bearer "abcdefgh"', 'authorization: ***"'),
    ],
)  # fmt: skip
def test_secrets_are_masked(line: str, shown: str) -> None:
    assert mask(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "redis: Connection refused; reading again in 0.1 s",
        "POST /v1/jobs 202 1.2ms",
        "http://127.0.0.1:8080/v1/jobs",
        "mail me@example.com",
        "the bearer of news",
        "sluice_data_dir is /var/lib/sluice",
    ],
)
def test_other_text_is_unchanged(line: str) -> None:
    assert mask(line) == line


@pytest.mark.parametrize(
    "piece", ["://a:", "//b:", "://", "@a://b:", "authorization ", "authorization: '", "bearer "]
)
def test_a_long_text_is_masked_quickly(piece: str) -> None:
    text = f"://a:{piece * (500_000 // len(piece))}"
    began = time.perf_counter()
    mask(text)
    assert time.perf_counter() - began < 5  # once this took an hour


@pytest.mark.parametrize(
    "formatter",
    [TextFormatter(), JsonFormatter(), MessageFormatter()],
    ids=lambda f: type(f).__name__,
)
def test_tracebacks_are_masked_in_every_format(formatter: logging.Formatter) -> None:
    try:
        raise RuntimeError(f"cannot use {KEY} at redis://me:hunter2@host")
    except RuntimeError:
        fault = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "with %s", (KEY,), fault)
    line = formatter.format(record)
    assert SECRET not in line
    assert "hunter2" not in line
    assert line.count("sluice_ab12cd34_***") == 2
