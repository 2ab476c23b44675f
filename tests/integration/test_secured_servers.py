"""Tests with a Kafka and a Redis that require authentication, and allow each user only what `relay rights` prints."""

import asyncio
import io
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from click.testing import CliRunner
from redis.asyncio import Redis

from bench.kafka_parts import Unsuitable, free_ports, new_cluster_id
from relay.cli.rights import rights
from relay.clock import SystemClock
from relay.config.plan import ROLES, ProcessPlan
from relay.config.setting_layers import load_settings
from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable, SettingsHidden, UserError
from relay.domain.rights import OPERATOR, RESULTS, SENDER, rights_of
from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.run.composition import kafka_log, redis_state
from relay.run.process import RelayProcess
from relay.sink import ReceivedPost, Sink
from relay.telemetry.logging import configure
from relay.watch import own_events
from tests.integration.production import CALLBACK_SECRET, SECRETS
from tests.servers import kafka_acls
from tests.servers.asking import said, until
from tests.servers.certificates import Authority
from tests.servers.kafka import KafkaBroker, unavailable
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.kafka

PREFIX = "team."
USERS = (*(f"relay-{role}" for role in (*ROLES, OPERATOR)), SENDER, RESULTS)
PASSWORD = "correct-horse"
TIMEOUT_S = 200.0
PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_SSL://127.0.0.1:{sasl},\
SSL://127.0.0.1:{mutual}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://127.0.0.1:{sasl},SSL://127.0.0.1:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/$1/,DEFAULT
"""


@dataclass
class Secured:
    """`open`: where an administrator comes in without a password. `environ`: of a process of this user."""

    open: str
    sasl: int
    mutual: int
    redis: int
    redis_admin: str
    authority: Authority
    cwd: Path

    def environ(self, user: str, **changes: str | None) -> dict[str, str]:
        usual: dict[str, str | None] = {
            "RELAY_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.sasl}",
            "RELAY_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "RELAY_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "RELAY_KAFKA_SASL_USERNAME": user,
            "RELAY_KAFKA_SASL_PASSWORD": PASSWORD,
            "RELAY_KAFKA_CA_FILE": str(self.authority.file),
            "RELAY_REDIS_URL": self.redis_url(user),
            "RELAY_TOPIC_PREFIX": PREFIX,
            "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
            "RELAY_API_PORT": "0",
            "RELAY_RECEIVERS_FILE": str(self.cwd / "receivers.yaml"),
        }
        return {name: value for name, value in (usual | changes).items() if value is not None}

    def settings(self, user: str, **changes: str | None) -> Settings:
        return load_settings({}, self.environ(user, **changes))

    def redis_url(self, user: str, password: str = PASSWORD, certificate: str | None = "client") -> str:
        options = f"?ssl_ca_certs={self.authority.file}"
        if certificate is not None:
            file = self.authority.file.with_name(f"{certificate}.pem")
            options += f"&ssl_certfile={file}&ssl_keyfile={file}"
        return f"rediss://{user}:{password}@127.0.0.1:{self.redis}/0{options}"


def printed(user: str | None = None) -> list[str]:
    """The commands for all roles."""
    found = CliRunner().invoke(rights, [], env={"RELAY_TOPIC_PREFIX": PREFIX}, catch_exceptions=False).output
    lines = [line.replace(" $KAFKA", "") for line in found.splitlines() if line.startswith("kafka-acls.sh")]
    return [line for line in lines if user is None or f"User:{user} " in line]


def redis_rules() -> list[list[str]]:
    """ACL SETUSER's words for each role."""
    found = CliRunner().invoke(rights, ["-o", "json"], env={"RELAY_TOPIC_PREFIX": PREFIX}, catch_exceptions=False)
    rules = [one["redis"] for one in json.loads(found.output)["users"] if one["redis"]]
    return [[word.replace(">PASSWORD", f">{PASSWORD}") for word in rule] for rule in rules]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    for name in ("server", "client", "relay-api"):
        made.issue(name)
    return made


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[tuple[KafkaBroker, int, int]]:
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    sasl, mutual = free_ports(2)
    scram = [
        word
        for user in USERS
        for word in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={PASSWORD},iterations=4096]")
    ]
    more = PROPERTIES.format(
        sasl=sasl, mutual=mutual, server=authority.file.with_name("server.pem"), authority=authority.file
    )
    try:
        broker = KafkaBroker(more, fresh=("-t", new_cluster_id(), *scram))
    except Unsuitable as reason:
        unavailable(str(reason))
    try:
        broker.start()
        yield broker, sasl, mutual
    finally:
        broker.stop()


@pytest.fixture
async def secured(broker: tuple[KafkaBroker, int, int], authority: Authority, tmp_path: Path) -> AsyncIterator[Secured]:
    kafka, sasl, mutual = broker
    with ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction")) as valkey:
        async with Redis.from_url(valkey.url) as client, tls_before(valkey, authority) as port:
            for rule in redis_rules():
                await said(client, "ACL", "SETUSER", *rule)
            await kafka_acls.run(kafka.bootstrap, printed())
            yield Secured(kafka.bootstrap, sasl, mutual, port, valkey.url, authority, tmp_path)


@asynccontextmanager
async def tls_before(valkey: ValkeyServer, authority: Authority) -> AsyncIterator[int]:
    """A port that takes those with a certificate of the authority: our Valkey is built without TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(authority.file.with_name("server.pem"))
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(valkey.url.removeprefix("unix://"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(copy(reader, inner_writer))
            tasks.create_task(copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


@asynccontextmanager
async def running(secured: Secured, role: str) -> AsyncIterator[RelayProcess]:
    """A process of this role, as its own user, once it has started."""
    settings = secured.settings(f"relay-{role}")
    relay = RelayProcess(
        settings, kafka_log(settings), redis_state(settings), ProcessPlan(frozenset({role})), os.environ, SystemClock()
    )
    stop, started = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(relay.run(stop, started.set))
        waiting = tasks.create_task(started.wait())
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait((run, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield relay
        stop.set()


async def refusal(secured: Secured, user: str, roles: frozenset[str], **changes: str | None) -> list[str]:
    """The lines with which a process does not start."""
    settings = secured.settings(user, **changes)
    relay = RelayProcess(
        settings, kafka_log(settings), redis_state(settings), ProcessPlan(roles), os.environ, SystemClock()
    )
    with pytest.raises(UserError) as refused:
        async with asyncio.timeout(TIMEOUT_S):
            await relay.run(asyncio.Event())
    return str(refused.value).splitlines()


async def produce(secured: Secured, *messages: Mapping[str, Any]) -> None:
    settings = secured.settings(SENDER)
    log = kafka_log(settings)
    producer = AIOKafkaProducer(**log._cluster.arguments())
    await producer.start()
    for message in messages:
        await producer.send_and_wait(f"{PREFIX}from_sender", json.dumps(message).encode(), key=b"github")
    await producer.stop()
    await log.close()


async def test_messages_go_round_with_the_least_rights_of_each_role(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    configure("json", stream=out)  # whatever tests before this one have left
    changed = asyncio.Event()

    def notify(_arrival: ReceivedPost) -> None:
        changed.set()

    sinks = {
        "circleci": Sink("answer", secret=SECRETS["circleci"], on_arrival=notify),
        "later": Sink("later", secret=SECRETS["later"], later_polls=1, on_arrival=notify),
        "ops": Sink("answer", on_arrival=notify),
    }
    callback = Sink("answer", secret=CALLBACK_SECRET, on_arrival=notify)
    for sink in (*sinks.values(), callback):
        await sink.start()
    receivers: dict[str, dict[str, Any]] = {
        name: {"post_endpoint": sink.url, "secret": SECRETS.get(name, CALLBACK_SECRET)} for name, sink in sinks.items()
    }
    receivers["ops"] |= {"sources": ["relay"], "event_types": ["message.failed"]}
    monkeypatch.setattr(own_events, "GATHER_S", 0.1)
    receivers["later"] |= {"status_endpoint": sinks["later"].status_url_template, "poll": {"base": 0.2}}
    file = {"sources": {"*": {"callback": {"url": callback.url, "secret": CALLBACK_SECRET}}}, "receivers": receivers}
    (secured.cwd / "receivers.yaml").write_text(json.dumps(file))
    topics = Topics(PREFIX)
    log = kafka_log(secured.settings("relay-operator"))
    await log.start()
    await log.create(topics.fixed(), topics.fixed_groups())
    await log.close()

    async with (
        running(secured, "api"),
        running(secured, "from-sender"),
        running(secured, "to-receiver"),
        running(secured, "from-receiver-async"),
        running(secured, "to-sender"),
        running(secured, "failed-messages"),
    ):
        envelope = {"source_id": "github", "payload": {"n": 1}}
        await produce(
            secured,
            envelope | {"message_id": "one", "receiver": "circleci"},
            envelope | {"message_id": "two", "receiver": "later"},
            envelope | {"message_id": "three", "receiver": "nobody"},
        )
        wanted = {("one", "answered"), ("two", "answered"), ("three", "failed")}
        async with asyncio.timeout(TIMEOUT_S):
            while outcomes(callback) < wanted or not sinks["ops"].received:
                changed.clear()
                await changed.wait()

        # rights that are taken away are waited for
        rights_of_one = printed("relay-to-receiver")
        await kafka_acls.run(secured.open, [line.replace("--add", "--remove") for line in rights_of_one])
        await produce(secured, envelope | {"message_id": "four", "receiver": "circleci"})

        async def is_told() -> bool:
            return "AuthorizationFailedError: this user lacks the right" in out.getvalue()

        await until(is_told)
        assert ("four", "answered") not in outcomes(callback)  # though a fetch in flight may have returned it
        await kafka_acls.run(secured.open, rights_of_one)
        async with asyncio.timeout(TIMEOUT_S):
            while ("four", "answered") not in outcomes(callback):
                changed.clear()
                await changed.wait()
    for sink in (*sinks.values(), callback):
        await sink.stop()

    reader = kafka_log(secured.settings(RESULTS))
    await reader.start()
    assert await reader.lacking(rights_of(topics, [RESULTS])) == []
    with pytest.raises(LogUnavailable, match=f"this user lacks the right on {topics.receiver_config};"):
        await reader.backlogs({topics.receiver_config: topics.group("to-sender")})
    with pytest.raises(SettingsHidden, match=f"this user lacks the right on {topics.to_sender};"):  # DescribeConfigs
        await reader.describe([topics.to_sender])
    [refused] = await reader.lacking(rights_of(topics, [SENDER]))
    assert refused.operations == ("Write",)
    await reader.close()

    taken = f"kafka-acls.sh --remove --allow-principal User:relay-to-receiver --topic {PREFIX}to_sender"
    await kafka_acls.run(secured.open, [f"{taken} --operation Write"])
    assert await refusal(secured, "relay-to-receiver", frozenset({"to-receiver"})) == [
        f"Kafka: this user may not Write on topic {PREFIX}to_sender; "
        "`relay rights --role to-receiver` prints the commands that allow it"
    ]
    groups = await refusal(secured, "relay-to-sender", frozenset({"failed-messages"}))
    assert any(f"may not Read on group {PREFIX}relay.failed-messages;" in line for line in groups)


def outcomes(callback: Sink) -> set[tuple[str, str]]:
    return {(each.headers["relay-message-id"], each.headers["relay-outcome"]) for each in callback.received}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RELAY_KAFKA_SASL_PASSWORD": "wrong"}, "rejects the password of user relay-api; see RELAY_KAFKA_"),
        ({"RELAY_KAFKA_SASL_USERNAME": "nobody"}, "rejects the password of user nobody"),
        ({"RELAY_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256"}, "does not take SCRAM-SHA-256; see RELAY_KAFKA_SASL_MECH"),
        ({"RELAY_KAFKA_CA_FILE": None}, "its certificate is refused: "),
    ],
    ids=["password", "user", "mechanism", "authority"],
)
async def test_a_cluster_that_does_not_let_us_in_is_said_in_a_line(
    secured: Secured, changes: dict[str, str | None], words: str
) -> None:
    [line] = await refusal(secured, "relay-api", frozenset({"api"}), **changes)
    assert line.startswith(f"Kafka at 127.0.0.1:{secured.sasl}: ")
    assert words in line
    assert PASSWORD not in line


async def test_a_login_that_is_rejected_when_a_running_process_connects_again_is_the_error(secured: Secured) -> None:
    """As after a change of the password: connections that are open stay, and new ones are rejected."""
    log = kafka_log(secured.settings("relay-api", RELAY_KAFKA_SASL_PASSWORD="wrong"))
    topic = f"{PREFIX}from_sender"
    for call in (log.describe([topic]), log.append([NewRecord(topic, b"github", b"{}")])):
        with pytest.raises(LogUnavailable, match="it rejects the password of user relay-api; see RELAY_KAFKA_"):
            await call
    await log.close()


def mutual(secured: Secured) -> dict[str, str | None]:
    """Settings for the listener that requires a certificate."""
    return {
        "RELAY_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{secured.mutual}",
        "RELAY_KAFKA_SECURITY_PROTOCOL": "SSL",
        **dict.fromkeys(f"RELAY_KAFKA_SASL_{name}" for name in ("MECHANISM", "USERNAME", "PASSWORD")),
    }


async def test_a_sender_with_transactions_needs_the_right_that_its_page_gives_it(secured: Secured) -> None:
    page = (Path(__file__).parents[2] / "docs/kafka-senders.md").read_text()
    [command] = [line.replace(" $KAFKA", "") for line in page.splitlines() if "--transactional-id" in line]
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await make_transaction(secured)
    await kafka_acls.run(secured.open, [command])
    await make_transaction(secured)


async def make_transaction(secured: Secured) -> None:
    log = kafka_log(secured.settings(SENDER))
    producer = AIOKafkaProducer(**log._cluster.arguments(), transactional_id="github-1")
    try:
        await producer.start()
        async with producer.transaction():
            pass
    finally:
        await producer.stop()
        await log.close()


async def test_a_certificate_of_ours_is_who_we_are(secured: Secured) -> None:
    [line] = await refusal(secured, "relay-api", frozenset({"api"}), **mutual(secured))
    assert "RELAY_KAFKA_CERTIFICATE_FILE" in line
    certificate = str(secured.authority.file.with_name("relay-api.pem"))
    rights = rights_of(Topics(PREFIX), ["api"])
    log = kafka_log(secured.settings("relay-api", **mutual(secured), RELAY_KAFKA_CERTIFICATE_FILE=certificate))
    await log.start()
    assert await log.lacking(rights) == []
    await log.close()


async def test_a_certificate_of_ours_that_is_replaced_is_presented(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.log.kafka.cluster.CHECK_FILES_EVERY_S", 0.01)
    own, next_one = tmp_path / "own.pem", tmp_path / "next.pem"
    shutil.copy(secured.authority.file.with_name("client.pem"), own)  # a name without any right
    shutil.copy(secured.authority.file.with_name("relay-api.pem"), next_one)
    log = kafka_log(secured.settings("relay-api", **mutual(secured), RELAY_KAFKA_CERTIFICATE_FILE=str(own)))
    await log.start()
    rights = rights_of(Topics(PREFIX), ["api"])
    assert await log.lacking(rights) != []

    next_one.replace(own)

    async def has_all() -> bool:
        await log._client._disconnect()  # as the broker does when it restarts
        return await log.lacking(rights) == []

    await until(has_all)
    await log.close()


async def test_redis_without_the_right_login_is_said_in_a_line(secured: Secured) -> None:
    async def refused_by(url: str) -> str:
        state = redis_state(secured.settings("relay-api", RELAY_REDIS_URL=url))
        with pytest.raises(UserError) as refused:
            await state.start()
        await state.close()
        [line] = str(refused.value).splitlines()
        return line

    assert "see the user and password in the Redis URL" in await refused_by(secured.redis_url("relay-api", "wrong"))
    async with Redis.from_url(secured.redis_admin) as admin:
        await said(admin, "ACL", "SETUSER", "relay-api", "-hget", "-zadd")
        assert "this user may not run HGET, ZADD; `relay rights` prints" in await refused_by(
            secured.redis_url("relay-api")
        )
        await said(admin, "ACL", "SETUSER", "relay-api", "+hget", "+zadd", "resetkeys", "~other:*")
        assert f"this user may not use keys like {PREFIX}relay:" in await refused_by(secured.redis_url("relay-api"))
    with pytest.raises(UserError, match=r"ssl_certfile=.*: there is no such file"):
        redis_state(secured.settings("relay-api", RELAY_REDIS_URL=secured.redis_url("relay-api", certificate="none")))
