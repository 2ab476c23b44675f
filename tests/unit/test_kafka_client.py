"""Requests of our own over a connection that goes away under them."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import IllegalGenerationError, KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from relay.domain.errors import LogUnavailable
from relay.log.kafka.client import TOPICS_A_REQUEST, KafkaClient, described, kafka_errors
from relay.log.kafka.cluster import GroupTiming, KafkaCluster, LoginRejected
from relay.log.kafka.consumer import KafkaConsumer
from relay.log.kafka.holdings import WantedTopics
from relay.log.kafka.membership import GroupMember
from relay.log.kafka.offsets import Committed, GroupOffsets
from relay.log.kafka.producer import KafkaProducer
from relay.log.port import Subscription, TopicPartition
from tests.servers.asking import until

CLUSTER = KafkaCluster("unused", repeat_s=0.0)


class Lost(AIOKafkaConnection):  # type: ignore[misc]  # the library is untyped
    """A connection that another one replaces while its request waits, or that is closed under it."""

    def __init__(self, client: AIOKafkaClient, error: Exception) -> None:
        super().__init__("127.0.0.1", 9)
        self.client = client
        self.error = error

    def connected(self) -> bool:
        return True

    def close(self, reason: CloseReason | None = None, exc: BaseException | None = None) -> asyncio.Future[None]:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed

    async def send(self, *_: object, **__: object) -> NoReturn:
        self.client._conns.clear()
        raise self.error


class Connecting:
    """A connection of which the metadata are awaited, until `lost` is set."""

    def __init__(self) -> None:
        self.asked, self.lost = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def send(self, *_: object) -> NoReturn:
        self.asked.set()
        await self.lost.wait()
        raise KafkaConnectionError

    def close(self) -> None:
        self.closed = True


async def test_who_is_cancelled_while_connecting_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connecting()

    async def connected(*_: object, **__: object) -> Connecting:
        return connection

    monkeypatch.setattr("aiokafka.client.create_conn", connected)
    task = asyncio.create_task(CLUSTER.client(1_000))
    await connection.asked.wait()
    task.cancel()
    connection.lost.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.closed


async def _nothing(*_: object) -> None:
    pass


@pytest.fixture(params=["client", "producer"])
async def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AIOKafkaClient]:
    """A client of the library as we use it: of our own requests and of group members, or the producer's."""
    monkeypatch.setattr(AIOKafkaClient, "bootstrap", _nothing)
    monkeypatch.setattr(AIOKafkaProducer, "start", _nothing)
    if request.param == "client":
        client = await CLUSTER.client(1_000)
        yield client
        await client.close()
    else:
        producer = KafkaProducer(CLUSTER, KafkaClient(CLUSTER))
        running = await producer._started()
        yield running.producer.client
        await running.producer.client.close()


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError("the handler is closed")], ids=repr)
async def test_a_connection_that_is_lost_under_a_request_is_an_outage(
    library: AIOKafkaClient, error: Exception
) -> None:
    library._conns[1, ConnectionGroup.DEFAULT] = Lost(library, error)
    with pytest.raises(KafkaConnectionError, match="the connection was lost"):
        await library.send(1, MetadataRequest([]))


class OneBroker:
    """The library's client, connected to a broker that leads one partition of each topic, and has nothing in it."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.error: Exception | None = None
        self.cluster = SimpleNamespace(update_metadata=lambda _: None)

    def get_random_node(self) -> int:
        return 1

    async def send(self, _: int, request: Any) -> Any:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        if isinstance(request, MetadataRequest):
            return SimpleNamespace(topics=[(0, topic, False, [(0, 0, 1, [1], [1])]) for topic in request._topics])
        return SimpleNamespace(topics=[(topic, [(0, 0, -1, 7)]) for topic, _ in request._topics])

    async def close(self) -> None:
        pass


async def test_the_leaders_of_many_topics_are_asked_for_together() -> None:
    client, broker = KafkaClient(CLUSTER), OneBroker()
    library: Any = broker
    client._client = library
    places = [TopicPartition(f"t{number}", 0) for number in range(TOPICS_A_REQUEST + 1)]

    assert await client.offsets(places, "end") == dict.fromkeys(places, 7)
    assert [type(request) for request in broker.asked] == [MetadataRequest, MetadataRequest, OffsetRequest]

    await client.topics(["other"])
    await client.offsets([TopicPartition("other", 0)], "end")
    assert [type(request) for request in broker.asked[3:]] == [MetadataRequest, OffsetRequest]
    await client.close()


@pytest.mark.parametrize(
    ("node", "why"), [(None, "its coordinator does not answer"), (1, "waits up to 15 s for members")]
)
async def test_a_member_waits_for_others_only_once_the_coordinator_has_answered(node: int | None, why: str) -> None:
    """Before, a login that is rejected would look like that, too. Its reason is known soon after a loss."""
    client, broker = KafkaClient(CLUSTER), OneBroker()
    library: Any = broker
    client._client = library
    unused: Any = None
    consumer = KafkaConsumer(CLUSTER, GroupTiming(), Subscription("group", ["t"]), unused, unused, client, unused)
    await consumer._wanted.look()
    coordinator: Any = SimpleNamespace(
        watchdog=SimpleNamespace(is_assigned=False), coordinator_id=node, generation=-1, rejoin=lambda: None
    )
    consumer._member._coordinator = coordinator
    assert why in (consumer.waits_for() or "")

    broker.error = LoginRejected("it rejects the password")
    maintaining = asyncio.create_task(consumer._maintain())
    await asyncio.sleep(0)
    consumer.lost()

    async def is_known() -> bool:
        return "it rejects the password" in (consumer.waits_for() or "")

    await until(is_known)
    maintaining.cancel()
    await client.close()


def test_an_error_names_the_cause_once_and_no_objects_of_the_library() -> None:
    unreachable = "Unable to bootstrap from [('kafka', 9092, <AddressFamily.AF_UNSPEC: 0>)]"
    assert described(KafkaConnectionError(unreachable)) == "connection failed"
    assert described(KafkaConnectionError("the broker has moved")) == "KafkaConnectionError: the broker has moved"


async def test_a_broker_that_has_not_joined_its_cluster_yet_is_waited_for() -> None:
    """It answers, and knows no controller: the admin client raises an AttributeError."""

    async def nothing_new() -> None: ...

    admin = AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:9")
    admin._client.force_metadata_update = nothing_new
    with pytest.raises(LogUnavailable, match="no broker has joined"), kafka_errors("creating topics"):
        await admin.create_topics([NewTopic("t", 1, 1)])
    with pytest.raises(AttributeError), kafka_errors("creating topics"):
        None.nodes  # type: ignore[attr-defined]  # noqa: B018


class Refusing(OneBroker):
    """A broker that shows this user all topics but `secret`."""

    async def send(self, _: int, request: Any) -> Any:
        topics = [(29, topic, False, []) if topic == "secret" else self._row(topic) for topic in request._topics]
        return SimpleNamespace(topics=topics)

    def _row(self, topic: str) -> Any:
        return 0, topic, False, [(0, 0, 1, [1], [1])]


async def test_a_topic_that_this_user_may_not_see_does_not_keep_a_member_from_the_others() -> None:
    client = KafkaClient(CLUSTER)
    library: Any = Refusing()
    client._client = library
    wanted = WantedTopics(client, ["a", "b", "secret"])

    assert await wanted.look()
    assert wanted.missing == ["secret"]
    assert "lacks the right on secret" in str(wanted.waits_for)
    with pytest.raises(LogUnavailable, match="lacks the right on secret"):
        await client.topics(["a", "secret"])
    await client.close()


async def test_a_commit_that_a_right_is_missing_for_names_it_and_does_not_cost_the_membership() -> None:
    """The member stays, with all its other partitions."""
    removed: list[bool] = []
    client = KafkaClient(CLUSTER)
    library: Any = Committing(t=29, other=0)
    client._client = library
    member = GroupMember(CLUSTER, GroupTiming(), GroupOffsets(client, "group"), "group", cast(Any, None))
    coordinator: Any = SimpleNamespace(
        generation=7, member_id="m", is_joining=False, reset_generation=lambda: removed.append(True)
    )
    member._coordinator = coordinator
    with pytest.raises(LogUnavailable, match=r"committing for group: TopicAuth.* right on t;"):
        await member.commit({TopicPartition("t", 0): Committed(1), TopicPartition("other", 0): Committed(1)})
    assert not removed
    await client.close()


@pytest.mark.parametrize("codes", [(29, 22), (22, 29)])
async def test_a_commit_of_a_member_that_is_none_is_refused_as_such_whatever_rights_are_missing(
    codes: tuple[int, int],
) -> None:
    client = KafkaClient(CLUSTER)
    library: Any = Committing(**{f"t{code}": code for code in codes})
    client._client = library
    offsets = {TopicPartition(f"t{code}", 0): Committed(1) for code in codes}
    assert await GroupOffsets(client, "group").commit(offsets, (1, "m")) is IllegalGenerationError
    await client.close()


class Committing:
    """A group's coordinator that answers a commit with these error codes, by topic."""

    def __init__(self, **codes: int) -> None:
        self._codes = codes

    async def coordinator_lookup(self, *_: object) -> int:
        return 0

    async def send(self, _node: int, _request: object) -> Any:
        return SimpleNamespace(topics=[(topic, [(0, code)]) for topic, code in self._codes.items()])

    async def close(self) -> None: ...
