"""users.acl on a real server of each version: which user may run which commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from deploy.installer.layout import GATEWAY, WORKER
from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, NewJob
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import async_client
from sluice.common.redis.partitions import Partitions
from sluice.common.redis.pipelined import PipelinedConnection
from tests.support.deploy.acl import InstalledRedis

QUEUE, JOB, EVENTS = "jobs:stream", "job:a", "job:a:events"
WORKFLOW, RESULTS = "workflow:job:wf_20260214_001", "image:result"
SESSION, SESSIONS = AccessKeys().session("d"), AccessKeys().sessions("k")
TOKENS = AccessKeys().token_secret
Command = tuple[str, ...]


def commands(text: str) -> list[Command]:
    """Commands as for redis-cli, separated by semicolons."""
    return [tuple(command.split()) for command in text.split(";")]


#: Commands that read the queue, delete it, or take messages from it.
READS = commands(f"XRANGE {QUEUE} - +; XREVRANGE {QUEUE} + -; XREAD COUNT 1 STREAMS {QUEUE} 0")
DELETES = commands(f"XTRIM {QUEUE} MAXLEN 9; EXPIRE {QUEUE} 99; DEL {QUEUE}")
TAKES = commands(f"""
    XREADGROUP GROUP workers me STREAMS {QUEUE} >; XCLAIM {QUEUE} workers me 0 1-1;
    XAUTOCLAIM {QUEUE} workers me 0 0; XINFO STREAM {QUEUE} FULL;
    XGROUP CREATE {QUEUE} spies 0; DUMP {QUEUE}; COPY {QUEUE} {EVENTS}; RENAME {QUEUE} {EVENTS};
    SORT {QUEUE}; SORT {JOB} BY nosort GET {QUEUE}; OBJECT ENCODING {QUEUE};
    DEBUG OBJECT {QUEUE}; MIGRATE 127.0.0.1 1 {QUEUE} 0 1; MONITOR
""")
#: Keys and channels that both services use, also in scripts.
BOTH_MAY = commands(f"""
    HSET {WORKFLOW} status queued; RPUSH {WORKFLOW}:outbox x; LINDEX {WORKFLOW}:outbox 0;
    LPOP {WORKFLOW}:outbox; ZADD workflow:webhooks 1 wf_20260214_001;
    XADD workflow:webhooks:dlq * event_id x; XRANGE workflow:webhooks:dlq - +;
    PUBLISH workflow:webhooks:wake x; PUBLISH {QUEUE}:hints x;
    HSET image:status:x stage queued; SET image:upload:x claimed NX EX 3600;
    HSET image:record:x status queued; ZADD image:inflight 1 x;
    XADD {RESULTS} MAXLEN ~ 1000 * image_id x; XADD image:result:dlq * image_id x
""")
ENQUEUE = "redis.call('XADD', KEYS[1], '*', 'a', 'b') return redis.call('HGET', KEYS[2], 'status')"
GATEWAY_MAY = [
    ("EVAL", ENQUEUE, "2", QUEUE, JOB),
    *commands(f"""
        XADD {QUEUE} * job_id b; XLEN {QUEUE}; XRANGE {EVENTS} - +; XREAD STREAMS {EVENTS} 0;
        HGETALL {JOB}; SET {JobKeys().replication_marker} x EX 60; WAIT 0 1;
        SET {SESSION} x EX 9; MGET {SESSION}; DEL {SESSION}; SET {TOKENS} x NX; GET {TOKENS};
        ZADD {SESSIONS} 2 d; EXPIRE {SESSIONS} 9; ZREMRANGEBYSCORE {SESSIONS} -inf 1;
        ZRANGE {SESSIONS} 0 -2; ZREM {SESSIONS} d; GET idempotency.img:k;
        HSET idempotency.wf:create:k f x; HSET idempotency.wf.of:red:create:k f x
    """),
]
WORKER_MAY = commands(f"""
    XREADGROUP GROUP workers me STREAMS {QUEUE} >; XACK {QUEUE} workers 1-1;
    HSET {JOB} status done; XADD jobs:dlq * reason x; SET {QUEUE}:worker:me x
""")
#: Commands that only the admin may run, and keys and channels that neither service uses.
NEITHER_MAY = commands(f"""
    KEYS *; CONFIG GET *; CONFIG SET maxmemory 1; FLUSHALL; FLUSHDB; DEBUG SLEEP 0; SCRIPT FLUSH;
    SCRIPT KILL; ACL LIST; ACL SETUSER me +@all; SHUTDOWN NOSAVE; REPLICAOF 127.0.0.1 1; SAVE;
    BGREWRITEAOF; CLIENT LIST; CLIENT KILL TYPE normal; MODULE LIST; SWAPDB 0 0; RANDOMKEY;
    MIGRATE 127.0.0.1 1 {JOB} 0 1; RESTORE {JOB} 0 x; BLPOP {WORKFLOW}:outbox 1;
    LMOVE {WORKFLOW}:outbox workflow:x LEFT LEFT; RPUSH workflows:x x; SET images:x x;
    SET foo x; GET foo; SET rag x; SET rag.else x; SET ragged:x x; SET rag.uploads:x x;
    PUBLISH elsewhere x; PUBLISH workflow:else x; SUBSCRIBE elsewhere; PSUBSCRIBE *
""")
#: Keys that workers may neither read nor write.
ELSEWHERE = [
    *("foo", "jobs", "access:keys", "access:rate:k", "access:session:k", TOKENS),
    *("idempotency:k", "idempotency.fingerprint:k", "idempotency.img:k"),
    *("idempotency.wf:create:k", "idempotency.wf.of:red:create:k"),
]
#: Commands of a group that reads the results of images.
RESULT_GROUP = commands(f"""
    XGROUP CREATE {RESULTS} api-workers 0;
    XREADGROUP GROUP api-workers me STREAMS {RESULTS} >; XAUTOCLAIM {RESULTS} api-workers me 0 0;
    XINFO CONSUMERS {RESULTS} api-workers; XGROUP DELCONSUMER {RESULTS} api-workers me
""")
#: Documents of a namespace without and with a tenant: only workers write them.
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
GATEWAY_READS = commands(f"""
    GET {TEXTS[0]}; HMGET {DOCUMENTS[1]} d; HLEN {DOCUMENTS[0]}; SMEMBERS {NAMESPACES[1]};
    ZRANGE rag:default:order +inf -inf BYSCORE REV; SET rag.upload:j x EX 9; DEL rag.upload:j
""")
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


def in_script(*command: str) -> Command:
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
    gateway = installed_redis.client_of(GATEWAY)
    for command in TAKES:
        assert is_refused(gateway, *command), command
        assert command == ("MONITOR",) or is_refused(gateway, *in_script(*command)), command
    for command in (*READS, *DELETES):
        assert is_refused(gateway, *in_script(*command)) == installed_redis.has_selectors, command
        assert is_refused(gateway, *command) == installed_redis.has_selectors, command


@pytest.mark.parametrize(("role", "allowed"), [(GATEWAY, GATEWAY_MAY), (WORKER, WORKER_MAY)])
def test_a_service_may_run_the_commands_of_its_work(
    installed_redis: InstalledRedis, role: str, allowed: list[Command]
) -> None:
    client = installed_redis.client_of(role)
    with client.pipeline(transaction=True) as pipe:
        for command in (*allowed, *BOTH_MAY):
            pipe.execute_command(*command)
        pipe.execute()  # raises an error if one is refused
    for command in BOTH_MAY:
        assert not is_refused(client, *in_script(*command)), command


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_neither_may_run_other_commands(installed_redis: InstalledRedis, role: str) -> None:
    client = installed_redis.client_of(role)
    for command in NEITHER_MAY:
        assert is_refused(client, *command), command
        # Denied, or not allowed in scripts at all.
        with pytest.raises(redis.ResponseError):
            client.execute_command(*in_script(*command))
    assert installed_redis.admin.exists(JOB)


def test_the_worker_cannot_write_or_read_elsewhere(installed_redis: InstalledRedis) -> None:
    worker = installed_redis.client_of(WORKER)
    for key in ELSEWHERE:
        for command in commands(f"""
            SET {key} x; HSET {key} f x; XADD {key} * f x; ZADD {key} 1 x; GET {key};
            HGETALL {key}; EXISTS {key}; XREAD STREAMS {key} 0
        """):
            assert is_refused(worker, *command), command
            assert is_refused(worker, *in_script(*command)), command
        assert is_refused(worker, "EVAL", "return 1", "1", key)
        assert not installed_redis.admin.exists(key)


def test_workers_write_documents_and_the_gateway_reads_them(
    installed_redis: InstalledRedis,
) -> None:
    """Needs key permissions; before Redis 7 the gateway could write the documents."""
    worker, gateway = installed_redis.client_of(WORKER), installed_redis.client_of(GATEWAY)
    for command in WRITES:
        assert not is_refused(worker, *command)
        assert is_refused(gateway, *command) == installed_redis.has_selectors, command
        assert is_refused(gateway, *in_script(*command)) == installed_redis.has_selectors
    for key in (*TEXTS, *DOCUMENTS):
        assert is_refused(gateway, "EVAL", "return 1", "1", key) == installed_redis.has_selectors
        assert not is_refused(worker, "EVAL", "return 1", "1", key)
    for command in GATEWAY_READS:
        assert not is_refused(gateway, *command), command
    for key in ("rag", "rag.else", "ragged:x", "rag.uploads:x"):
        assert is_refused(gateway, "GET", key)


def test_gateway_may_read_only_the_results_as_a_group(installed_redis: InstalledRedis) -> None:
    installed_redis.admin.xadd(RESULTS, {"image_id": "x"})
    worker, gateway = installed_redis.client_of(WORKER), installed_redis.client_of(GATEWAY)
    for command in RESULT_GROUP:
        assert is_refused(gateway, *command) != installed_redis.has_selectors, command
        assert not is_refused(worker, *command), command


def test_only_workers_may_use_vector_sets(installed_redis: InstalledRedis) -> None:
    worker, gateway = installed_redis.client_of(WORKER), installed_redis.client_of(GATEWAY)
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
    installed_redis.client_of(GATEWAY).eval(two_writes, 1, JOB)
    installed_redis.stop()
    installed_redis.start()
    assert installed_redis.admin.hmget(JOB, "a", "b") == ["1", "2"]
    assert "CRITICAL" not in installed_redis.log


# -- several partitions: jobs in any of them, everything else in partition 0 -------------------


PARTITIONS = Partitions.create(JobKeys(), 4)
STREAMS = [
    *(keys.queue for keys in PARTITIONS.keys),
    *(PARTITIONS.keys[1].for_lane(lane).stream for lane in ("high", "low")),
]
#: Keys that gateway and worker may read in partition 0 only.
PARTITION_0_KEYS = ("workflow:running", "image:record:x", "rag.upload:x")


@pytest.fixture(scope="module")
def partitioned(installed_redis: InstalledRedis) -> Iterator[InstalledRedis]:
    """A server of the same version."""
    installed = InstalledRedis(str(installed_redis.server.path), home=PARTITIONS.home)
    yield installed
    installed.close()


@pytest.fixture(params=range(PARTITIONS.count))
async def store(request: Any, partitioned: InstalledRedis) -> AsyncIterator[JobStore]:
    """Job store of one partition, connected as the gateway's user."""
    url = partitioned.url(GATEWAY)
    client, wire = async_client(url, connections=1), PipelinedConnection(url)
    keys = PARTITIONS.keys[request.param]
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT)
    yield JobStore(client, keys, batcher)
    await batcher.close()
    await wire.aclose()
    await client.aclose()


async def test_a_gateway_puts_jobs_into_any_partition(
    store: JobStore, partitioned: InstalledRedis
) -> None:
    job = NewJob("a", "chat", b"{}", 60, idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    partitioned.admin.acl_log_reset()
    assert (await store.enqueue(job, "workers", 10)).job_id == job.job_id
    assert await store.get(job.job_id) is not None
    assert not partitioned.refusals()


@pytest.mark.parametrize("stream", STREAMS)
def test_only_a_worker_reads_queues_and_lanes(partitioned: InstalledRedis, stream: str) -> None:
    gateway, worker = partitioned.client_of(GATEWAY), partitioned.client_of(WORKER)
    assert not is_refused(gateway, "XADD", stream, "*", "job_id", "x")
    assert not is_refused(gateway, "XLEN", stream)
    assert is_refused(gateway, "XRANGE", stream, "-", "+") is partitioned.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", stream, ">")
    assert not is_refused(worker, "XRANGE", stream, "-", "+")


def test_a_gateway_sends_commands_to_workers(partitioned: InstalledRedis) -> None:
    for keys in PARTITIONS.keys:
        assert not is_refused(
            partitioned.client_of(GATEWAY), "PUBLISH", f"{keys.queue}:control", "x"
        )


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_other_keys_are_allowed_in_partition_0_only(partitioned: InstalledRedis, role: str) -> None:
    client = partitioned.client_of(role)
    for name in PARTITION_0_KEYS:
        assert not is_refused(client, "EXISTS", f"{PARTITIONS.home.tag}{name}")
        assert is_refused(client, "EXISTS", f"{PARTITIONS.keys[3].tag}{name}")
    for name in (*PARTITION_0_KEYS, "job:x", "jobs:stream:counts", "access:rate:k"):
        assert is_refused(client, "EXISTS", name)
    assert is_refused(client, "EXISTS", "{1}:access:rate:k") is (role == WORKER)
