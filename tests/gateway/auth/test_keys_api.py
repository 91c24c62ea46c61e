"""`/v1/keys` and `/v1/whoami`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sluice.common.access import store
from sluice.gateway.auth.key_models import IssuedKeyView, KeyList, KeyView, WhoAmI
from tests.support.gateway.access import call, id_of, key_for, post
from tests.support.gateway.harness import Gateway, Make, check_problem
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

NEW_KEY: dict[str, Any] = {
    "name": "shop front",
    "tenant": "shop",
    "scopes": ["jobs:write", "metrics"],
    "expires_s": 3600,
    "tasks": ["chat"],
    "tools": ["calculator"],
    "rate_per_min": 60,
    "burst": 10,
    "max_jobs": 20,
}
INVALID_MEMBERS: dict[str, tuple[Any, ...]] = {
    "name": ("", "x" * 101, "a\u0000b", 7, None),
    "tenant": ("", "a:b", "A", "a\n"),
    "scopes": ([], ["root"]),
    "tasks": ([], ["dance"]),
    "tools": (["*"], [7]),
    "burst": (2,),  # without a rate
    "rate_per_min": (0, "many"),
    "max_jobs": (0, 1.5),
    "expires_s": (-1,),
    "key": ("sluice_mine",),
}


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(auth="required")


@pytest.fixture
async def admin(gateway: Gateway) -> str:
    return await key_for(gateway, "root", scopes=("admin",))


async def test_the_secret_of_a_key_is_shown_once(gateway: Gateway, admin: str) -> None:
    answer = await call(gateway, "POST", "/v1/keys", admin, NEW_KEY)
    assert answer.status == 201
    assert answer.header("cache-control") == "no-store"
    issued = IssuedKeyView.model_validate_json(answer.body)
    assert answer.header("location") == f"/v1/keys/{issued.key_id}"
    assert (issued.name, issued.tenant, issued.secrets) == ("shop front", "shop", 1)
    assert issued.limits.model_dump() == {"rate_per_min": 60, "burst": 10, "max_jobs": 20}
    assert issued.expires_ts is not None
    assert abs(issued.expires_ts - issued.created_ts - 3_600_000) < 5
    assert (await post(gateway, issued.key)).status == 202
    listed = await call(gateway, "GET", "/v1/keys", admin)
    one = await call(gateway, "GET", f"/v1/keys/{issued.key_id}", admin)
    secret = issued.key.rpartition("_")[2].encode()
    for later in (listed, one):
        assert later.status == 200
        assert later.header("cache-control") == "no-store"
        assert secret not in later.body
        assert b"sha256" not in later.body
    assert [item.name for item in KeyList.model_validate_json(listed.body).items] == [
        "root",
        "shop front",
    ]
    view = KeyView.model_validate_json(one.body)
    assert view.model_dump() == {
        **issued.model_dump(exclude={"key"}),
        "last_used_ts": view.last_used_ts,
    }


async def test_a_name_is_enough_for_a_key(
    gateway: Gateway, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = (await call(gateway, "POST", "/v1/keys", admin, {"name": "x"})).json()
    assert view["scopes"] == ["jobs:write", "jobs:read"]
    assert (view["tenant"], view["tasks"], view["expires_ts"]) == (None, None, None)
    assert set(view["limits"].values()) == {None}
    monkeypatch.setattr(store, "MOST_KEYS", 2)
    answer = await call(gateway, "POST", "/v1/keys", admin, {"name": "x"})
    check_problem(answer, 409, "too_many_keys")


async def test_invalid_keys_are_rejected(make: Make) -> None:
    gateway = make()
    before = await gateway.snapshot()
    bodies: list[dict[str, Any]] = [{"tenant": "x"}]  # without a name
    for member, values in INVALID_MEMBERS.items():
        bodies += [{"name": "x", member: value} for value in values]
    for body in bodies:
        answer = await call(gateway, "POST", "/v1/keys", None, body)
        assert check_problem(answer, 422, "invalid_request")["errors"], body
    for raw in (b"{", b"[]", b"7", b""):
        headers = {"content-type": "application/json"}
        answer = await gateway.client.send("POST", "/v1/keys", headers, raw)
        assert answer.status in (400, 422)
    for key_id in ("x", "AAAAAAAA", "aaaa:aaa", "*", "aaaaaaaaa"):
        answer = await gateway.client.send("DELETE", f"/v1/keys/{key_id}")
        check_problem(answer, 404, "key_not_found")
    assert await gateway.snapshot() == before
    assert await gateway.redis.exists("access:trail") == 0


async def test_a_rotated_key_keeps_its_old_secret_for_a_while(gateway: Gateway, admin: str) -> None:
    old = await key_for(gateway, tenant="shop")
    path_of_key = f"/v1/keys/{id_of(old)}"
    answer = await call(gateway, "POST", f"{path_of_key}/rotate", admin)
    assert (answer.status, answer.header("cache-control")) == (200, "no-store")
    assert answer.json()["secrets"] == 2
    new = answer.json()["key"]
    for key in (old, new):
        assert (await post(gateway, key)).status == 202
    answer = await call(gateway, "POST", f"{path_of_key}/rotate", admin, {"grace_s": 0})
    newest = answer.json()["key"]
    for key in (old, new):
        check_problem(await post(gateway, key), 401, "invalid_key")
    assert (await post(gateway, newest)).status == 202
    for body in ({"grace_s": -1}, {"grace_s": 10**9}, {"grace": 1}):
        refused = await call(gateway, "POST", f"{path_of_key}/rotate", admin, body)
        check_problem(refused, 422, "invalid_request")


async def test_a_revoked_key_is_deleted_completely(gateway: Gateway, admin: str) -> None:
    key = await key_for(gateway, rate_per_min=60, max_jobs=5)
    assert (await post(gateway, key)).status == 202
    answer = await call(gateway, "DELETE", f"/v1/keys/{id_of(key)}", admin)
    assert (answer.status, answer.body) == (204, b"")
    check_problem(await post(gateway, key), 401, "invalid_key")
    for method, rest in (("DELETE", ""), ("GET", ""), ("POST", "/rotate")):
        refused = await call(gateway, method, f"/v1/keys/{id_of(key)}{rest}", admin)
        check_problem(refused, 404, "key_not_found")
    left = [name.decode() for name in await gateway.redis.keys("access:*")]
    assert not [name for name in left if id_of(key) in name]


async def test_the_last_use_is_shown(gateway: Gateway, admin: str) -> None:
    key = await key_for(gateway)
    assert (await post(gateway, key)).status == 202

    async def last_used() -> int | None:
        answer = await call(gateway, "GET", f"/v1/keys/{id_of(key)}", admin)
        return answer.json()["last_used_ts"]

    used = await eventually(last_used)
    assert abs(used - time.time() * 1000) < 60_000


async def test_whoami_describes_the_key(gateway: Gateway, admin: str) -> None:
    spec = {"tenant": "shop", "scopes": ("ui",), "tasks": ("rag", "chat"), "tools": ()}
    key = await key_for(gateway, "shop front", **spec, max_jobs=3)
    answer = await call(gateway, "GET", "/v1/whoami", key)
    WhoAmI.model_validate_json(answer.body)
    assert answer.header("cache-control") == "no-store"
    shown = {**spec, "scopes": ["ui"], "tasks": ["chat", "rag"], "tools": [], "expires_ts": None}
    limits = {"rate_per_min": None, "burst": None, "max_jobs": 3}
    assert answer.json() == {"key_id": id_of(key), "name": "shop front", **shown, "limits": limits}
    me = (await call(gateway, "GET", "/v1/whoami", admin)).json()
    assert me["scopes"] == ["jobs:write", "jobs:read", "metrics", "ui", "admin"]


async def test_whoami_without_a_key_is_local(make: Make) -> None:
    me = (await make().client.get("/v1/whoami")).json()
    assert (me["key_id"], me["name"], me["tenant"]) == (None, "local", None)
    assert "admin" in me["scopes"]
