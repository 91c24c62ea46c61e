"""`GET /docs`: the API on one page, rendered from its OpenAPI document, without scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sluice.gateway.http.openapi.tags import title_of
from sluice.gateway.http.security import PAGE_HEADERS

JSON = "application/json"
STREAM = "text/event-stream"
_BASE = "http://localhost:8080"


def kind_of(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A type in short: `integer 1 to 200`, `chat | plan`, `string or null`."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        return " or ".join(kind_of(document, choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join("null" if each is None else str(each) for each in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"array of {kind_of(document, schema.get('items', {}))}"
    if schema.get("format") not in (None, "int64", "double"):
        kind += f" ({schema['format']})"
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("maxLength"))
    if least is not None and most is not None:
        return f"{kind}, {least} to {most}"
    return kind if most is None else f"{kind}, at most {most}"


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it refers to."""
    reference = schema.get("$ref", "")
    if not reference:
        return schema
    named: dict[str, Any] = document["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return {**named, **schema, "$ref": ""}


def curl(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", f"${parameter['name'].upper()}")
    parts = ["curl"] if method == "get" else ["curl", "-X", method.upper()]
    if STREAM in operation["responses"].get("200", {}).get("content", {}):
        parts.insert(1, "-N")  # prints each event at once
    parts.append(f'"{_BASE}{path}"' if "$" in path else _BASE + path)
    if body is not None:
        parts += ["-H", f"'Content-Type: {JSON}'", "\\\n "]
        written = json.dumps(_example(body), ensure_ascii=False).replace("'", "'\\''")
        parts += ["-d", f"'{written}'"]
    return " ".join(parts)


def _example(body: dict[str, Any]) -> Any:
    examples = body.get("schema", {}).get("examples") or [{}]
    return body.get("example", examples[0])


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--paper:#fbfbfa;--card:#fff;
--line:#e2e5e9;--code:#f2f4f6;--get:#1a6b3c;--post:#1f4fa3;--put:#8a5a00;--delete:#a3262b}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--dim:#98a3b3;--paper:#12161c;--card:#1a2028;
--line:#2c3541;--code:#222a34;--get:#6fd39a;--post:#86b4ff;--put:#e5b567;--delete:#ff8d8d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:2rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{margin:0}h2{margin:2.2rem 0 .6rem}h3{margin:1.2rem 0 .3rem;
font-size:1rem}p{margin:.4rem 0}.dim,small{color:var(--dim)}a{color:inherit}
code,pre{font:.9em ui-monospace,monospace;background:var(--code);border-radius:.3rem}
code{padding:.1em .3em;overflow-wrap:anywhere}pre{padding:.7rem .9rem;overflow-x:auto}
details{background:var(--card);border:1px solid var(--line);border-radius:.5rem;margin:.5rem 0;
padding:0 1rem}
details[open]{padding-bottom:1rem}
summary{cursor:pointer;padding:.6rem 0;display:flex;gap:.8rem;flex-wrap:wrap;align-items:baseline}
summary b{font:700 .85rem ui-monospace,monospace;width:4.2rem}
.get{color:var(--get)}.post{color:var(--post)}.put,.patch{color:var(--put)}
.delete{color:var(--delete)}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;
border-top:1px solid var(--line)}
th{font-weight:400;white-space:nowrap}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def install(app: FastAPI) -> None:
    made: list[bytes] = []

    async def docs(request: Request) -> Response:
        if not made:
            made.append(render(app.openapi()).encode())
        return HTMLResponse(made[0], headers=HEADERS)

    app.add_route("/docs", docs, methods=["GET"], include_in_schema=False)


def render(document: dict[str, Any]) -> str:
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    groups: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            [tag, *_] = operation.get("tags") or ["other"]
            groups.setdefault(tag, []).append(_operation(document, method, path, operation))
    parts = [f"<h2>{escape(title_of(tag))}</h2>{''.join(shown)}" for tag, shown in groups.items()]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{_prose(info['description'])}</p>"
        '<p class="dim">As OpenAPI document: <a href="/openapi.json">/openapi.json</a>. Errors '
        "are problems as in RFC 9457, <code>application/problem+json</code>.</p>"
        f"{''.join(parts)}</body></html>"
    )


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = operation.get("parameters", [])
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    parts = [f"<p>{_prose(operation.get('description', ''))}</p>"]
    if parameters:
        parts.append("<h3>Parameters</h3>" + _table(_parameters(document, parameters)))
    if body:
        schema = resolved(document, body["schema"])
        parts.append("<h3>Body, as JSON</h3>" + _table(_fields(document, schema)))
    example = curl(method, path, operation)
    parts.append(f"<h3>Example</h3><pre>{escape(example)}</pre>")
    parts.append("<h3>Responses</h3>" + _table(_responses(document, operation["responses"])))
    return (
        f'<details><summary><b class="{escape(method)}">{escape(method.upper())}</b>'
        f"<code>{escape(path)}</code> <span>{_prose(operation.get('summary', ''))}</span></summary>"
        f"{''.join(parts)}</details>"
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{left}</th><td>{right}</td></tr>" for left, right in rows)
    return f"<table>{lines}</table>"


def _parameters(
    document: dict[str, Any], parameters: list[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        kind = f"in the {parameter['in']}, {kind_of(document, parameter.get('schema', {}))}"
        yield _named(parameter["name"], kind), _prose(parameter.get("description", ""))


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    needed = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        kind = kind_of(document, part) + (", required" if name in needed else "")
        yield _named(name, kind), _prose(part.get("description", ""))


def _responses(document: dict[str, Any], responses: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, response in sorted(responses.items()):
        shown = _prose(response.get("description", ""))
        for media_type, media in response.get("content", {}).items():
            if int(status) < 400:
                schema = media.get("schema", {})
                fields = ", ".join(resolved(document, schema).get("properties", {}))
                shown += f"<br><small>{escape(media_type)} {escape(fields)}</small>"
        yield f"<code>{escape(status)}</code>", shown


def _named(name: str, kind: str) -> str:
    return f"<code>{escape(name)}</code><br><small>{escape(kind)}</small>"


def _prose(text: str) -> str:
    """Escaped text, with `code` marked up."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(
        f"<code>{piece}</code>" if odd % 2 else piece for odd, piece in enumerate(pieces)
    )
