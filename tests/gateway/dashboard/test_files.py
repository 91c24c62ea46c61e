"""Static files of the dashboard, and its JavaScript modules in Node.js."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.dashboard.static_files import STATIC, FileCache
from tests.gateway.http.openapi.test_openapi import Page
from tests.gateway.http.test_middleware import check_strict
from tests.support.gateway.harness import Gateway, Make, check_problem
from tests.support.servers import missing

pytestmark = pytest.mark.fakeredis_only

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Limits for all files that the overview loads: uncompressed, and as sent to a browser.
MOST_BYTES = 150_000
MOST_COMPRESSED_BYTES = 60_000


async def test_every_page_serves_the_same_html(make: Make) -> None:
    gateway = make(auth="required")
    for target in ("/ui", "/ui/", "/ui/jobs", "/ui/jobs/a%2Fb", "/ui/no/such"):
        answer = await gateway.client.get(target)
        assert answer.status == 200, "pages and files need no key"
        assert answer.header("content-type") == "text/html; charset=utf-8"
        assert answer.body == (STATIC / "index.html").read_bytes()
        check_strict(answer, POLICY)
        assert answer.header("cross-origin-opener-policy") == "same-origin"
        assert answer.header("permissions-policy")


async def test_html_has_no_inline_script_or_style(gateway: Gateway) -> None:
    html = (await gateway.client.get("/ui")).body.decode()
    page = Page(re.sub(r"<link([^>]*)>", r"<link\1></link>", html))
    assert "style" not in page.tags
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert not re.findall(r"<script[^>]*>[^<]", html)
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith("/")


def static_files() -> list[str]:
    served = {".js", ".css", ".svg", ".html"}
    return sorted(
        str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.suffix in served
    )


async def test_every_file_has_its_content_type(make: Make) -> None:
    gateway = make(auth="required")
    kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for name in static_files():
        if name != "index.html":
            answer = await gateway.client.get(f"/ui/static/{name}")
            assert answer.status == 200, name
            assert answer.body == (STATIC / name).read_bytes(), name
            expected = kind[name.rpartition(".")[2]]
            assert (answer.header("content-type") or "").startswith(expected), name
            check_strict(answer, POLICY)


def test_scripts_never_parse_markup() -> None:
    parsing = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc")
    for name in static_files():
        if name.endswith(".js") and not name.startswith("vendor/"):
            source = (STATIC / name).read_text()
            assert not [way for way in parsing if way in source], name
            assert not re.search(r'(?: from |import\(|fetch\(|Source\()"(?![./])', source), name


async def test_unchanged_file_gets_304(gateway: Gateway) -> None:
    first = await gateway.client.get("/ui/static/app.js")
    tag = first.header("etag") or ""
    for known in (tag, f'"other", {tag}', "*"):
        again = await gateway.client.get("/ui/static/app.js", {"if-none-match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == tag
    other = await gateway.client.get("/ui/static/app.js", {"if-none-match": '"other"'})
    assert other.status == 200
    head = await gateway.client.send("HEAD", "/ui/static/app.js")
    assert (head.status, head.header("etag")) == (200, tag)


async def test_files_are_compressed_for_clients_that_accept_it(gateway: Gateway) -> None:
    for name in static_files():
        if name == "index.html":
            continue
        path, content = f"/ui/static/{name}", (STATIC / name).read_bytes()
        plain = await gateway.client.get(path)
        assert (plain.body, plain.header("content-encoding")) == (content, None)
        answer = await gateway.client.get(path, {"accept-encoding": "gzip, deflate, br"})
        assert answer.status == 200
        assert answer.header("content-encoding") == "gzip"
        assert answer.header("content-length") == str(len(answer.body))
        assert len(answer.body) < len(content)
        assert gzip.decompress(answer.body) == content
        assert answer.header("content-type") == plain.header("content-type")
        assert answer.header("vary") == plain.header("vary") == "Accept-Encoding"
        check_strict(answer, POLICY)
    page = await gateway.client.get("/ui", {"accept-encoding": "gzip"})
    assert gzip.decompress(page.body) == (STATIC / "index.html").read_bytes()


async def test_both_encodings_have_their_own_etag(gateway: Gateway) -> None:
    path, accept = "/ui/static/app.js", {"accept-encoding": "gzip"}
    tag = (await gateway.client.get(path)).header("etag") or ""
    zipped_tag = (await gateway.client.get(path, accept)).header("etag") or ""
    assert tag != zipped_tag
    again = await gateway.client.get(path, {**accept, "if-none-match": zipped_tag})
    assert (again.status, again.body, again.header("etag")) == (304, b"", zipped_tag)
    assert again.header("content-encoding") is None
    assert again.header("vary") == "Accept-Encoding"
    for headers in ({**accept, "if-none-match": tag}, {"if-none-match": zipped_tag}):
        assert (await gateway.client.get(path, headers)).status == 200
    head = await gateway.client.send("HEAD", path, accept)
    assert (head.header("etag"), head.header("content-encoding")) == (zipped_tag, "gzip")


#: Values of Accept-Encoding, and whether they allow gzip.
ENCODINGS = {
    "gzip": True, "GZIP": True, "br, gzip;q=0.5": True, "*": True, "x-gzip": True,
    "gzip ; Q=1.0, *;q=0": True, "": False, "identity": False, "br": False, "gzip;q=0": False,
    "gzip; q=0.000": False, "*, gzip;q=0": False, "*;q=0": False, "gzipped": False, ";,;q": False,
}  # fmt: skip


async def test_accept_encoding_is_respected(gateway: Gateway) -> None:
    for value, allowed in ENCODINGS.items():
        answer = await gateway.client.get("/ui/static/app.js", {"accept-encoding": value})
        assert (answer.header("content-encoding") == "gzip") == allowed, value


async def test_only_files_are_compressed(gateway: Gateway) -> None:
    for path in ("/ui/session", "/v1/stats", "/v1/jobs", "/openapi.json", "/ui/static/no.js"):
        answer = await gateway.client.get(path, {"accept-encoding": "gzip"})
        assert answer.header("content-encoding") is None, path


async def test_other_files_are_not_found(gateway: Gateway) -> None:
    for name in (
        *("nothing.js", "index.html", "pages", "pages/", "", "app.js/", "vendor/README.md"),
        *("../static_files.py", "..%2Fstatic_files.py", "%2e%2e/static_files.py"),
        "pages/../app.js",
        *("pages/../../x.js", "/etc/passwd", "%2Fetc%2Fpasswd", "a\\..\\b.js"),
        *("vendor//x.js", "pages/jobs", "pages/jobs/", "pages/jobs/../overview.js", "a/b/c/d.js"),
        "a" * 3000 + ".js",
    ):
        check_problem(await gateway.client.get(f"/ui/static/{name}"), 404)
    check_problem(await gateway.client.get("/ui/static/app.js%00"), 400, "malformed_request")


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    files = FileCache(tmp_path)
    assert files.get("x.js") is None
    (tmp_path / "x.js").write_text("one")
    first = files.get("x.js")
    assert first is not None
    assert files.get("x.js") is first, "not read twice"
    (tmp_path / "x.js").write_text("another")
    second = files.get("x.js")
    assert second is not None
    assert (second.plain.content, first.plain.content) == (b"another", b"one")
    assert second.plain.etag != first.plain.etag


def test_a_file_is_compressed_once_and_only_if_that_helps(tmp_path: Path) -> None:
    files = FileCache(tmp_path)
    (tmp_path / "small.js").write_text("x")
    (tmp_path / "large.js").write_text("x" * 1000)
    small, large = files.get("small.js"), files.get("large.js")
    assert small is not None
    assert large is not None
    assert small.gzipped is None
    assert large.gzipped is not None
    assert files.get("large.js") is large
    assert FileCache(tmp_path).get("large.js") == large, "the same on every gateway"


async def test_root_redirects_browsers_to_the_dashboard(make: Make) -> None:
    gateway, off = make(), make(dashboard="off")
    page = await gateway.client.get("/", {"accept": "text/html,*/*"})
    assert (page.status, page.header("location")) == (302, "/ui")
    check_problem(await gateway.client.get("/"), 404)
    for target in ("/", "/ui", "/ui/jobs", "/ui/static/app.js", "/ui/session"):
        check_problem(await off.client.get(target, {"accept": "text/html"}), 404)


def imports_of(name: str, seen: set[str]) -> set[str]:
    """Names of a module and all modules that it imports statically, relative to static."""
    if name not in seen:
        seen.add(name)
        folder = (STATIC / name).parent
        source = (STATIC / name).read_text()
        for path in re.findall(r'^(?:import|export)\b[^"]*from "(\.[^"]+)"', source, re.MULTILINE):
            target = (folder / path).resolve().relative_to(STATIC.resolve())
            imports_of(str(target), seen)
    return seen


def test_overview_size_is_within_budget() -> None:
    loaded = imports_of("app.js", set()) | imports_of("pages/overview.js", set())
    linked = re.findall(r'="/ui/static/([^"]+)"', (STATIC / "index.html").read_text())
    everything = loaded | set(linked) | {"index.html"}
    assert "vendor/uPlot.js" in everything
    weight = sum((STATIC / name).stat().st_size for name in everything)
    assert weight <= MOST_BYTES, f"{weight} bytes of {sorted(everything)}"
    cached = [FileCache().get(name) for name in everything]
    sent = sum(len((file.gzipped or file.plain).content) for file in cached if file)
    assert sent <= MOST_COMPRESSED_BYTES, f"{sent} bytes of {sorted(everything)}"


#: Evaluates an expression with the exports of a module, and prints the value as JSON.
_RUN = """
const names = await import(process.argv[1]);
const value = new Function(...Object.keys(names), `return (${process.argv[2]})`)(
  ...Object.values(names));
console.log(JSON.stringify(value ?? null));
"""


def run(module: str, expression: str) -> Any:
    node = shutil.which("node")
    if node is None:
        missing("Node.js is not installed")
        raise AssertionError
    command = [node, "--input-type=module", "-e", _RUN, (STATIC / module).as_uri(), expression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: By function of the module: its arguments, and the text.
FORMATTED = {
    "duration": {
        "0": "0 ms", "0.4": "0.4 ms", "12.6": "13 ms", "1300": "1.3 s", "9960": "10 s",
        "59700": "1 min", "252000": "4 min 12 s", "7500000": "2 h 5 min", "180000000": "2 d 2 h",
        "null": "–",
    },
    "bytes": {
        "0": "0 B", "999": "999 B", "1023": "1.0 KB", "63512576": "61 MB", "-2048": "-2.0 KB",
        "NaN": "–",
    },
    "count": {"12345": "12,345", "0.256": "0.26", "undefined": "–"},
    "plural": {
        "1, 'key'": "1 key", "0, 'key'": "0 keys",
        "1200, 'delivery', 'deliveries'": "1,200 deliveries",
    },
    "ago": {"1000, 4500": "3 s ago", "10000, 5000": "in 5 s", "1000, 1200": "now",
            "0, 7200000": "2 h ago"},
    "shortId": {"'6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e'": "6f1c0f0e", "'wf_1'": "wf_1"},
    "clock": {"'no time'": "–", "9e15": "–"},
}  # fmt: skip


def test_numbers_are_formatted() -> None:
    for function, texts in FORMATTED.items():
        calls = ", ".join(f"{function}({arguments})" for arguments in texts)
        assert run("lib/format.js", f"[{calls}]") == list(texts.values())


SHOWN = [
    ("12345678901234567890", "12345678901234567890"),
    ('{"b":1,"a":1.10,"b":2}', '{\n  "b": 1,\n  "a": 1.10,\n  "b": 2\n}'),
    ('{"__proto__":{"x":[]}}', '{\n  "__proto__": {\n    "x": []\n  }\n}'),
    ('"<img src=x onerror=alert(1)>"', '"<img src=x onerror=alert(1)>"'),
    ('["\\ud800", "\\u0000"]', '[\n  "\\ud800",\n  "\\u0000"\n]'),
    ("[1,]", "[1,]"),
    ("{a:1}", "{a:1}"),
    ('{"a":1}}', '{"a":1}}'),
    ("", ""),
    ("nul", "nul"),
    ("[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
]


def test_json_is_not_altered() -> None:
    texts = json.dumps([text for text, _ in SHOWN])
    assert run("components/json_view.js", f"{texts}.map(pretty)") == [shown for _, shown in SHOWN]


def test_paths_and_queries_are_encoded() -> None:
    query = "{q: 'a&b', none: null, empty: '', status: ['x', 'y'], n: 0}"
    expression = f"[url`/v1/jobs/${{'a/b?c#d'}}/x`, queryString({query}), queryString({{}})]"
    expected = ["/v1/jobs/a%2Fb%3Fc%23d/x", "?q=a%26b&status=x&status=y&n=0", ""]
    assert run("lib/api.js", expression) == expected


def test_permissions_follow_the_session() -> None:
    record = '{"may": ["submit"], "reads": ["jobs"], "signed_in": true}'
    session, nobody = f"new Session({record})", "new Session(null)"
    calls = ("can('submit')", "can('admin')", "canRead('jobs')", "canRead('all')")
    expression = f"[{', '.join(f'{who}.{call}' for who in (session, nobody) for call in calls)}]"
    assert run("lib/session.js", expression) == [True, False, True, False, *[False] * 4]


def test_the_return_path_stays_on_the_dashboard() -> None:
    others = ["/ui", "//evil.example", "/ui//evil.example", "https://evil.example/ui", "/v1/keys"]
    paths = ["/ui/jobs?x=1", *others, "/ui/login?back=/ui", "/uix"]
    shown = run("lib/session.js", f"{json.dumps(paths)}.map(returnPath)")
    assert shown == ["/ui/jobs?x=1", *["/ui"] * 7]
