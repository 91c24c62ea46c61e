"""Destinations, body, signature and retry delays of webhooks, slots, dead-letter file."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.common.errors import SettingsError
from sluice.common.features.workflows.webhooks import hosts
from sluice.common.features.workflows.webhooks.hosts import (
    AllowedHosts,
    WebhookRefused,
    check_url,
    is_public,
)
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.features.webhooks import dead_letter_file
from sluice.worker.features.webhooks import service as origins_module
from sluice.worker.features.webhooks.dead_letter_file import ROTATED_FILES, DeadLetterFile
from sluice.worker.features.webhooks.delivery import RetryPolicy
from sluice.worker.features.webhooks.request import build_callback, make_event_id, request_headers
from sluice.worker.features.webhooks.sender import result_for_status
from sluice.worker.features.webhooks.service import OriginLimits

NOBODY = AllowedHosts()
INWARD = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1",
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "192.88.99.1", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
    "2002:7f00:1::", "2001::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::10.0.0.1", "64:ff9b:1::1", "100::1", "3fff::1", "fec0::1", "5f00::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "2606:4700:4700::1111"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("text", INWARD)
def test_private_addresses_are_refused_in_any_notation(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not is_public(address)
    assert not NOBODY.allows("example.com", address)
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(WebhookRefused, match=r"is not a public address; .* add "):
        check_url(f"http://{host}/", NOBODY)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    host = f"[{text}]" if ":" in text else text
    assert check_url(f"https://{host}:8443/", NOBODY).port == 8443


@pytest.mark.parametrize(
    "url",
    ["http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://017700000001/",
     "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/", "http://127.0.0.1.2/",
     "http://1.2.3.256/", "http://example.0x1/", "http://example.1/", "http://0/",
     "http://127.0.0.01/", "http://１２７.0.0.1/", "http://127.0.0.1%2f@x/",
     "http://[::1%25lo]/", "http://[fe80::1%25eth0]/", "http://[127.0.0.1]/", "http://[::1]x/",
     "http://x@127.0.0.1/", "http://a:b@example.com/", "http://example.com\\@127.0.0.1/",
     "http://exam ple.com/", "http://example.com/\n", "http://example.com/\x00", "http://bücher.de/",
     "ftp://example.com/", "file:///etc/passwd", "gopher://x/", "//example.com/", "example.com",
     "http://", "http:///x", "http://-a/", "http://a..b/", "http://.a/", "http://a:0/",
     "http://a:99999/", "http://a:x/", "http://example.com/#top", "http://" + "a" * 64 + ".com/",
     "https://example.com/" + "x" * 2048, "http://[::1/", "http://%6c%6fcalhost/"],
)  # fmt: skip
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(WebhookRefused):
        check_url(url, AllowedHosts.parse("127.0.0.1,localhost,::1,example.com"))


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [("https://Example.com", "example.com", "/"),
     ("https://example.com.:443/a/b?c=d&e", "example.com", "/a/b?c=d&e"),
     ("http://example.com:8080/?", "example.com:8080", "/"),
     ("http://example.com:80/x;y=1", "example.com", "/x;y=1"),
     ("http://a_b.xn--bcher-kva.example/", "a_b.xn--bcher-kva.example", "/"),
     ("http://[2606:4700:4700:0::1111]:8081/", "[2606:4700:4700::1111]:8081", "/")],
)  # fmt: skip
def test_parts_of_a_url(url: str, authority: str, path: str) -> None:
    target = check_url(url, NOBODY)
    assert (target.authority, target.path) == (authority, path)
    assert target.origin == f"{target.scheme}://{authority}"


@pytest.mark.parametrize("port", [1, 22, 25, 79, 81, 442, 444, 445, 1023])
def test_ports_of_other_services_are_refused(port: int) -> None:
    for host in ("example.com", "8.8.8.8", "[2606:4700:4700::1111]"):
        with pytest.raises(WebhookRefused, match=f"port {port} is not for webhooks.* add "):
            check_url(f"https://{host}:{port}/", NOBODY)
        named = AllowedHosts.parse(f"{host.strip('[]')},192.168.1.0/24")
        assert check_url(f"https://{host}:{port}/", named).port == port
    with pytest.raises(WebhookRefused, match="is not for webhooks"):
        check_url(f"http://other.example:{port}/", AllowedHosts.parse("example.com"))
    for usual in (80, 443, 1024, 65535):
        assert check_url(f"http://example.com:{usual}/", NOBODY).port == usual


def test_addresses_of_this_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may hide its services from other hosts."""
    own, other = ipaddress.ip_address("8.8.4.4"), ipaddress.ip_address("8.8.8.8")
    monkeypatch.setattr(hosts, "is_own_address", lambda address: address == own)
    assert NOBODY.allows("example.com", other)
    for address in (own, ipaddress.ip_address("::ffff:8.8.4.4")):
        with pytest.raises(WebhookRefused, match=r"which is an address of this host; .* add "):
            NOBODY.check("example.com", [other, address])
    with pytest.raises(WebhookRefused, match=r"8\.8\.4\.4 is an address of this host"):
        check_url("https://8.8.4.4/", NOBODY)
    for text in ("8.8.4.4", "example.com"):
        AllowedHosts.parse(text).check("example.com", [own])


def test_own_addresses_are_known_to_the_kernel() -> None:
    assert hosts.is_own_address(ipaddress.ip_address("127.0.0.1"))
    for text in ("8.8.8.8", "192.0.2.1", "2001:db8::1"):
        assert not hosts.is_own_address(ipaddress.ip_address(text))


def test_hosts_are_allowed_by_address_network_and_name() -> None:
    allowed = AllowedHosts.parse(" 127.0.0.1, hooks.LAN. ,192.168.1.0/24,[fd00::1]")
    assert check_url("http://127.0.0.1:9/", allowed).host == "127.0.0.1"
    assert check_url("http://[fd00::1]/", allowed).host == "fd00::1"
    for url in ("http://127.0.0.2/", "http://192.168.2.1/", "http://10.0.0.1/"):
        with pytest.raises(WebhookRefused):
            check_url(url, allowed)
    private, linked = ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("169.254.169.254")
    public = ipaddress.ip_address("8.8.8.8")
    for address in (private, ipaddress.ip_address("127.0.0.1"), public):
        assert allowed.allows("hooks.lan", address)
    assert allowed.allows("any.example", ipaddress.ip_address("::ffff:192.168.1.7"))
    assert not allowed.allows("other.lan", private)
    # A name never leads to cloud metadata addresses, even an allowed one: that needs the address.
    assert not allowed.allows("hooks.lan", linked)
    assert AllowedHosts.parse("169.254.169.254").allows("hooks.lan", linked)
    # One private address among public ones is enough.
    with pytest.raises(WebhookRefused, match=r"example\.com is 10\.1\.2\.3, which is not a public"):
        NOBODY.check("example.com", [public, private])


def test_names_of_this_machine_are_refused_at_once() -> None:
    for url in ("http://localhost:9/", "https://LOCALHOST/", "http://a.localhost/"):
        with pytest.raises(WebhookRefused, match="not a public address"):
            check_url(url, NOBODY)
        assert check_url(url, AllowedHosts.parse("127.0.0.0/8"))
    assert check_url("http://localhost/", AllowedHosts.parse("localhost"))


@pytest.mark.parametrize("text", ["10.0.0.0/99", "127.1", "a b", "http://x/", "hooks.lan:80", "-"])
def test_a_wrong_setting_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", text)
    with pytest.raises(SettingsError, match=r"WORKFLOW_WEBHOOK_ALLOWED_HOSTS.*write them like"):
        load_settings(WorkerSettings)


@given(st.text(max_size=60))
def test_any_url_is_allowed_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"https://{text}/"):
        try:
            target = check_url(url, NOBODY)
        except WebhookRefused:
            continue
        assert target.address is None or is_public(target.address)
        assert target.scheme in ("http", "https")


JOB = "wf_20260214_001"


def entry(**changes: object) -> bytes:
    data = '{"step": "index_extract", "summary": "…", "count": 1}'
    members: dict[str, object] = {
        "ts": 1_771_083_600_999, "seq": 7, "data": data, "type": "step.completed",
        "current_step": "index_extract", "status": "running",
    }  # fmt: skip
    return json.dumps({**members, **changes}).encode()


def test_the_body_follows_the_contract() -> None:
    callback = build_callback(JOB, "memory_first_v2", entry())
    digest = hashlib.sha256(f"{JOB}|step.completed|7".encode()).hexdigest()[:8]
    assert callback.event_id == f"{JOB}:step.completed:{digest}"
    assert callback.event_type == "step.completed"
    assert callback.body.decode() == (
        f'{{"event_id":"{JOB}:step.completed:{digest}","event_type":"step.completed",'
        f'"job_id":"{JOB}","workflow":"memory_first_v2","status":"running",'
        '"current_step":"index_extract",'
        '"payload":{"step":"index_extract","summary":"…","count":1},'
        '"emitted_at":"2026-02-14T15:40:00Z"}'
    )
    assert build_callback(JOB, "memory_first_v2", entry()) == callback
    jobs, kinds = (JOB, "wf_20260214_002"), ("step.completed", "step.started")
    names = {make_event_id(job, kind, n) for job in jobs for kind in kinds for n in (1, 2)}
    assert len(names) == 8
    big = build_callback(JOB, "w", entry(data='{"big": 123456789012345678901234567890}'))
    assert b'"payload":{"big":123456789012345678901234567890}' in big.body


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"1", b"{}", entry(seq=None), entry(ts="x"), entry(data="{"),
     entry(ts=10**30)],
)  # fmt: skip
def test_invalid_entries_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        build_callback(JOB, "w", raw)


def test_headers_with_and_without_a_secret() -> None:
    body = b'{"x":1}'
    signed = request_headers(body, b"key", 1_771_083_600)
    assert signed["X-Workflow-Event"] == "job_callback"
    assert signed["X-Workflow-Timestamp"] == "1771083600"
    assert signed["X-Workflow-Signature-Version"] == "v1"
    digest = hmac.new(b"key", b"1771083600." + body, hashlib.sha256).hexdigest()
    assert signed["X-Workflow-Signature"] == f"sha256={digest}"
    assert signed["Content-Type"] == "application/json"
    plain = request_headers(body, b"", 1_771_083_600)
    signed.pop("X-Workflow-Signature")
    assert plain == signed


def test_delays_are_exponential_with_jitter_up_to_the_cap() -> None:
    least = RetryPolicy(5, 1.0, 60.0, jitter=lambda: 0.0)
    most = RetryPolicy(5, 1.0, 60.0, jitter=lambda: 1.0)
    assert [least.delay_s(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [most.delay_s(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert most.delay_s(100_000) == 60
    # Retry-After only increases the delay.
    assert [least.delay_s(1, after_s) for after_s in (7.0, 0.0, 3600.0)] == [7.0, 0.5, 60.0]
    assert [RetryPolicy(2, 1, 1).allows_retry(n) for n in (1, 2, 3)] == [True, True, False]
    assert not RetryPolicy(0, 1, 1).allows_retry(1)
    for status, header, seconds in (
        (503, "120", 120),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", 0),
        *((429, nonsense, None) for nonsense in ("soon", "nan", "", None)),
        (400, "120", None),
    ):
        assert result_for_status(status, header).retry_after_s == seconds


@pytest.mark.parametrize(
    ("status", "ok", "retryable"),
    [(200, True, False), (204, True, False), (299, True, False), (301, False, False),
     (304, False, False), (400, False, False), (404, False, False), (408, False, False),
     (410, False, False), (429, False, True), (500, False, True), (501, False, True),
     (503, False, True), (599, False, True), (999, False, True)],
)  # fmt: skip
def test_only_429_and_5xx_are_retryable(status: int, ok: bool, retryable: bool) -> None:
    attempted = result_for_status(status)
    assert (attempted.ok, attempted.retryable) == (ok, retryable)


def test_one_origin_gets_at_most_half_of_the_slots() -> None:
    origins = OriginLimits(8)
    assert [origins.acquire("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [origins.acquire("b") for _ in range(5)] == [True] * 4 + [False]
    assert origins.free == 0
    assert not origins.acquire("c")
    origins.release("a", timed_out=False)
    assert origins.acquire("c")
    single = OriginLimits(1)  # available to any origin
    for name in "ab":
        assert single.acquire(name)
        assert not single.acquire(name)
        single.release(name, timed_out=True)


def test_a_slow_origin_gets_one_slot_until_it_answers() -> None:
    origins = OriginLimits(8)
    assert origins.acquire("a")
    origins.release("a", timed_out=True)
    assert [origins.acquire("a") for _ in range(3)] == [True, False, False]
    origins.release("a")  # nothing was sent, so nothing is known
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    origins.release("a", timed_out=False)
    assert [origins.acquire("a") for _ in range(2)] == [True, True]


def test_all_slow_origins_together_get_half_of_the_slots() -> None:
    origins = OriginLimits(8)
    for name in "abcdefgh":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire(name) for name in "abcdefgh"] == [True] * 4 + [False] * 4
    assert [origins.acquire("sound") for _ in range(5)] == [True] * 4 + [False]


def test_the_number_of_slow_origins_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins_module, "MOST_SLOW_ORIGINS", 2)
    origins = OriginLimits(8)
    for name in "abac":
        origins.acquire(name)
        origins.release(name, timed_out=True)
    assert [origins.acquire("b") for _ in range(2)] == [True, True]
    assert [origins.acquire("a") for _ in range(2)] == [True, False]
    assert [origins.acquire("c") for _ in range(2)] == [True, False]


WRITER = """
import json, sys
from sluice.worker.features.webhooks.dead_letter_file import DeadLetterFile
file = DeadLetterFile(sys.argv[1], 40_000)
for number in range(60):
    line = {"name": sys.argv[2], "number": number, "pad": "x" * 500}
    assert file.append(json.dumps(line).encode())
"""


def all_lines(directory: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for path in sorted(directory.iterdir())
        for line in path.read_text().splitlines()
    ]


def test_appending_creates_directory_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "letters.jsonl"
    assert DeadLetterFile(path).append(b'{"x":1}')
    assert DeadLetterFile(path).append(b'{"x":2}\n')
    assert path.read_bytes() == b'{"x":1}\n{"x":2}\n'
    assert path.stat().st_mode & 0o077 == 0  # payloads are private
    # A torn line does not affect the next.
    path.write_bytes(b'{"x":1}\n{"x":')
    assert DeadLetterFile(path).append(b'{"x":3}')
    assert path.read_bytes().splitlines() == [b'{"x":1}', b'{"x":', b'{"x":3}']


def test_concurrent_writers_and_rotation_keep_lines_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "letters.jsonl")]
    # The kept files can hold all lines.
    writers = [subprocess.Popen([*command, f"w{each}"]) for each in range(3)]
    assert [writer.wait(60) for writer in writers] == [0] * 3
    found = all_lines(tmp_path)
    assert len(found) == 180
    assert len({(line["name"], line["number"]) for line in found}) == 180
    assert (tmp_path / "letters.jsonl.1").exists()


def test_the_oldest_files_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    for number in range(ROTATED_FILES + 5):
        assert DeadLetterFile(path, most_bytes=1).append(b"%d" % number)
    assert path.read_text() == f"{ROTATED_FILES + 4}\n"
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == sorted(
        ["letters.jsonl", *(f"letters.jsonl.{n}" for n in range(1, ROTATED_FILES + 1))]
    )
    assert (tmp_path / "letters.jsonl.1").read_text() == f"{ROTATED_FILES + 3}\n"


def test_a_write_failure_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "letters.jsonl", tmp_path):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert not DeadLetterFile(path).append(b"{}")
        assert "WORKFLOW_WEBHOOK_DLQ_PATH" in caplog.text


def test_a_full_disk_leaves_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "letters.jsonl"
    assert DeadLetterFile(path).append(b"first")
    real = os.write
    monkeypatch.setattr(dead_letter_file.os, "write", lambda file, data: real(file, data[:2]))
    assert not DeadLetterFile(path).append(b"second")
    monkeypatch.undo()
    assert DeadLetterFile(path).append(b"third")
    assert path.read_bytes() == b"first\nthird\n"
