"""users.acl on a real server of each version: which user may run which commands."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from common.contracts.access import AccessKeys
from common.contracts.jobs import JobKeys
from deploy.installer.layout import GATEWAY, WORKER
from tests.support.deploy.acl import InstalledRedis

QUEUE, JOB, EVENTS = "jobs:stream", "job:a", "job:a:events"

#: Commands that read the queue, delete it, or take messages from it.
READS = [
    ("XRANGE", QUEUE, "-", "+"),
    ("XREVRANGE", QUEUE, "+", "-"),
    ("XREAD", "COUNT", "1", "STREAMS", QUEUE, "0"),
]
DELETES = [("XTRIM", QUEUE, "MAXLEN", "9"), ("EXPIRE", QUEUE, "99"), ("DEL", QUEUE)]
TAKES = [
    ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", QUEUE, ">"),
    ("XCLAIM", QUEUE, "workers", "me", "0", "1-1"),
    ("XAUTOCLAIM", QUEUE, "workers", "me", "0", "0"),
    ("XINFO", "STREAM", QUEUE, "FULL"),
    ("XGROUP", "CREATE", QUEUE, "spies", "0"),
    ("DUMP", QUEUE),
    ("COPY", QUEUE, EVENTS),
    ("RENAME", QUEUE, EVENTS),
    ("SORT", QUEUE),
    ("SORT", JOB, "BY", "nosort", "GET", QUEUE),
    ("OBJECT", "ENCODING", QUEUE),
    ("DEBUG", "OBJECT", QUEUE),
    ("MIGRATE", "127.0.0.1", "1", QUEUE, "0", "1"),
    ("MONITOR",),
]
#: Commands that only the admin may run.
DANGEROUS = [
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("DEBUG", "SLEEP", "0"),
    ("SCRIPT", "FLUSH"),
    ("SCRIPT", "KILL"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "me", "+@all"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SAVE",),
    ("BGREWRITEAOF",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("MODULE", "LIST"),
    ("SWAPDB", "0", "0"),
    ("RANDOMKEY",),
    ("MIGRATE", "127.0.0.1", "1", JOB, "0", "1"),
    ("RESTORE", JOB, "0", "x"),
]
ELSEWHERE = [
    "foo",
    "access:keys",
    "access:rate:k",
    "access:session:k",
    "idempotency:k",
    "idempotency.fingerprint:k",
    "jobs",
]


DENIALS = (
    "The user executing the script can't",
    "ACL failure in script",
    "is not allowed from script",
    "DEBUG command not",
)


def is_refused(client: redis.Redis, *command: str) -> bool:
    """True if Redis denies the command for this user; other errors do not count."""
    try:
        client.execute_command(*command)
    except NoPermissionError:
        return True
    except redis.ResponseError as error:
        # Within a script the message differs, and some commands are not allowed in scripts at all.
        return any(words in str(error) for words in DENIALS)
    return False


def in_script(*command: str) -> tuple[str, ...]:
    words = ", ".join(f"'{word}'" for word in command)
    return "EVAL", f"return redis.call({words})", "0"


@pytest.fixture(autouse=True)
def queue(installed_redis: InstalledRedis) -> None:
    """One waiting message, one job and its events."""
    admin = installed_redis.admin
    admin.flushall()
    admin.execute_command("XGROUP", "CREATE", QUEUE, "workers", "0", "MKSTREAM")
    admin.xadd(QUEUE, {"job_id": "a", "task": "chat", "payload": "{}"})
    admin.hset(JOB, "status", "queued")
    admin.xadd(EVENTS, {"type": "queued"})


def test_gateway_cannot_read_take_or_delete_the_queue(installed_redis: InstalledRedis) -> None:
    """Reading and deleting are refused by selectors. docs/operations.md describes the limitation of
    Redis 6.2."""
    gateway = installed_redis.client(GATEWAY)
    for command in TAKES:
        assert is_refused(gateway, *command), command
        assert command == ("MONITOR",) or is_refused(gateway, *in_script(*command)), command
    for command in (*READS, *DELETES):
        assert is_refused(gateway, *in_script(*command)) == installed_redis.has_selectors, command
        assert is_refused(gateway, *command) == installed_redis.has_selectors, command


def test_the_gateway_can_wait_for_replicas(installed_redis: InstalledRedis) -> None:
    gateway = installed_redis.client(GATEWAY)
    assert gateway.set(JobKeys().replication_marker, "", ex=60)
    assert gateway.execute_command("WAIT", 0, 1) == 0


def test_gateway_can_enqueue_and_read_other_keys(
    installed_redis: InstalledRedis,
) -> None:
    gateway = installed_redis.client(GATEWAY)
    gateway.xadd(QUEUE, {"job_id": "b"})
    assert gateway.xlen(QUEUE) == 2
    assert gateway.xrange(EVENTS)
    assert gateway.xread({EVENTS: "0"})
    assert gateway.hgetall(JOB) == {"status": "queued"}
    script = (
        "redis.call('XADD', KEYS[1], '*', 'a', 'b'); return redis.call('HGET', KEYS[2], 'status')"
    )
    assert gateway.eval(script, 2, QUEUE, JOB) == "queued"


def test_the_gateway_keeps_sessions(installed_redis: InstalledRedis) -> None:
    gateway, keys = installed_redis.client(GATEWAY), AccessKeys()
    with gateway.pipeline(transaction=True) as pipe:
        pipe.set(keys.session("d"), "{}", ex=9)
        pipe.zremrangebyscore(keys.sessions("k"), "-inf", 1)
        pipe.zadd(keys.sessions("k"), {"d": 2})
        pipe.expire(keys.sessions("k"), 9)
        pipe.zrange(keys.sessions("k"), 0, -2)
        assert pipe.execute() == [True, 0, 1, True, []]
    assert gateway.mget([keys.session("d")]) == ["{}"]
    assert gateway.delete(keys.session("d")) == 1
    assert gateway.zrem(keys.sessions("k"), "d") == 1


def test_the_worker_cannot_write_or_read_elsewhere(installed_redis: InstalledRedis) -> None:
    worker = installed_redis.client(WORKER)
    for key in ELSEWHERE:
        for command in (
            ("SET", key, "x"),
            ("HSET", key, "f", "x"),
            ("XADD", key, "*", "f", "x"),
            ("ZADD", key, "1", "x"),
            ("GET", key),
            ("EXISTS", key),
            ("EVAL", "return 1", "1", key),
            in_script("SET", key, "x"),
            ("XREAD", "STREAMS", key, "0"),
        ):
            assert is_refused(worker, *command), command
        assert not installed_redis.admin.exists(key)


DOCUMENTS = ["rag:default:documents", "rag.of:red:default:documents"]
TEXTS = ["rag:default:text:d", "rag.of:red:default:text:d"]
NAMESPACES = ["rag.namespaces", "rag.namespaces.of:red"]
WRITES = [
    *(("SET", key, "x") for key in TEXTS),
    *(("DEL", key) for key in TEXTS),
    *(("HSET", key, "d", "x") for key in DOCUMENTS),
    *(("SADD", key, "x") for key in NAMESPACES),
    ("EXPIRE", TEXTS[0], "1"),
    ("ZADD", "rag:default:order", "1", "d"),
]


def test_workers_write_documents_and_the_gateway_reads_them(
    installed_redis: InstalledRedis,
) -> None:
    """Needs key permissions; before Redis 7 the gateway could write the documents."""
    worker, gateway = installed_redis.client(WORKER), installed_redis.client(GATEWAY)
    for command in WRITES:
        assert not is_refused(worker, *command)
        assert is_refused(gateway, *command) == installed_redis.has_selectors, command
        assert is_refused(gateway, *in_script(*command)) == installed_redis.has_selectors
    for key in (*TEXTS, *DOCUMENTS):
        assert is_refused(gateway, "EVAL", "return 1", "1", key) == installed_redis.has_selectors
        assert not is_refused(worker, "EVAL", "return 1", "1", key)
    for command in (
        ("GET", TEXTS[0]),
        ("HMGET", DOCUMENTS[1], "d"),
        ("HLEN", DOCUMENTS[0]),
        ("ZRANGE", "rag:default:order", "+inf", "-inf", "BYSCORE", "REV"),
        ("SMEMBERS", NAMESPACES[1]),
        ("SET", "rag.upload:j", "x", "EX", "9"),
        ("DEL", "rag.upload:j"),
    ):
        assert not is_refused(gateway, *command), command
    for key in ("rag", "rag.else", "ragged:x", "rag.uploads:x"):
        assert is_refused(worker, "SET", key, "x")
        assert is_refused(gateway, "SET", key, "x")
        assert is_refused(gateway, "GET", key)


def test_only_workers_may_use_vector_sets(
    installed_redis: InstalledRedis,
) -> None:
    worker, gateway = installed_redis.client(WORKER), installed_redis.client(GATEWAY)
    key = "rag:default:vset"
    added = ("VADD", key, "VALUES", "2", "1", "0", "d:0")
    if installed_redis.server.has_vector_sets:
        assert worker.execute_command(*added) == 1
        assert worker.execute_command("VSIM", key, "ELE", "d:0") == ["d:0"]
        assert is_refused(worker, "VADD", "elsewhere", *added[2:])
        assert is_refused(gateway, *added)
        assert worker.execute_command("VREM", key, "d:0") == 1
    else:
        with pytest.raises(redis.ResponseError, match="unknown command"):
            installed_redis.admin.execute_command(*added)


def test_the_worker_can_take_from_the_queue(installed_redis: InstalledRedis) -> None:
    worker = installed_redis.client(WORKER)
    [[_, [(message_id, _)]]] = worker.xreadgroup("workers", "me", {QUEUE: ">"})
    assert worker.xack(QUEUE, "workers", message_id) == 1
    worker.hset(JOB, "status", "done")
    worker.xadd("jobs:dlq", {"reason": "x"})
    worker.set("jobs:stream:worker:me", "{}")


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_neither_can_run_admin_commands(installed_redis: InstalledRedis, role: str) -> None:
    client = installed_redis.client(role)
    for command in DANGEROUS:
        assert is_refused(client, *command), command
        # Denied, or not allowed in scripts at all.
        with pytest.raises(redis.ResponseError):
            client.execute_command(*in_script(*command))
    assert installed_redis.admin.exists(JOB)


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_only_channels_of_the_queue_are_allowed(installed_redis: InstalledRedis, role: str) -> None:
    client = installed_redis.client(role)
    assert is_refused(client, "PUBLISH", "elsewhere", "x")
    assert is_refused(client, *in_script("PUBLISH", "elsewhere", "x"))
    assert is_refused(client, "SUBSCRIBE", "elsewhere")
    assert is_refused(client, "PSUBSCRIBE", "*")
    assert not is_refused(client, "PUBLISH", "jobs:stream:hints", "x")


def test_only_users_with_a_password_can_log_in(installed_redis: InstalledRedis) -> None:
    """Passwords are kept as digests, and the admin may do everything."""
    at_once = Retry(NoBackoff(), 0)
    anonymous = redis.Redis(unix_socket_path=str(installed_redis.socket), retry=at_once)
    with anonymous, pytest.raises(redis.AuthenticationError):
        anonymous.ping()
    text = (installed_redis.dir / "users.acl").read_text()
    assert "secret" not in text
    assert "nopass" not in text
    assert text.count("#") == 3
    assert installed_redis.admin.config_get("maxmemory")
    assert installed_redis.admin.keys("*")


def test_writes_of_scripts_survive_a_restart(installed_redis: InstalledRedis) -> None:
    """Redis loads its append-only file as the default user, with its permissions."""
    two_writes = "redis.call('HSET', KEYS[1], 'a', '1') redis.call('HSET', KEYS[1], 'b', '2')"
    installed_redis.client(GATEWAY).eval(two_writes, 1, JOB)
    installed_redis.restart()
    assert installed_redis.admin.hmget(JOB, "a", "b") == ["1", "2"]
    assert "CRITICAL" not in installed_redis.log
