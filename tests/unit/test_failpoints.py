"""Failpoints round the ports, on the ports in memory; and the command that builds them into a process."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import relay.delivery.egress
import relay.run.processes
from relay.api.peers import GroupProcess
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable, StateUnavailable
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.identity import MessageId
from relay.domain.topics import TopicSpec
from relay.log.port import Assignment, Log, NewRecord, Subscription, TopicPartition
from relay.state.replies import answered
from relay.state.rows import Arrival
from tests.fakes.log import MemoryBroker, opened_log
from tests.fakes.state import MemoryState
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import virtually
from tests.faults.harness import entry
from tests.faults.harness.failpoints import (
    KILLED,
    POINTS,
    PORTS,
    SENDS,
    UNFAILING,
    WITHOUT_EFFECT,
    Action,
    Failpoint,
    Failpoints,
    PointedTransport,
    methods_of,
    parse,
    pointed_log,
    pointed_state,
    read_counts,
)

ARRIVAL = Arrival(MessageId("source", "message"), b"digest", 0, 0)
POST = Request("POST", "http://receiver/answer", (("ce-id", "1"), ("ce-source", "a")))
GET = Request("GET", "http://receiver/answer/1", ())


class _Killed(BaseException):
    """In place of the end of the process."""


def _die() -> None:
    raise _Killed


def _at(name: str, nth: int, action: Action) -> Failpoints:
    return Failpoints(Failpoint(name, nth, action), die=_die)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", PORTS)
def test_every_method_of_a_port_is_a_point_or_said_to_have_no_effect(port: str) -> None:
    calls = {f"{port}.{method}" for method in methods_of(PORTS[port])} - {SENDS}
    known = {point.rsplit(".", 1)[0] for point in POINTS} | WITHOUT_EFFECT
    assert calls <= known, "a new method: give it a point, or say that it has no effect"


def test_no_method_is_both_and_all_of_the_list_exist() -> None:
    calls = {f"{port}.{method}" for port, protocol in PORTS.items() for method in methods_of(protocol)}
    assert calls >= WITHOUT_EFFECT
    assert not {point.rsplit(".", 1)[0] for point in POINTS} & WITHOUT_EFFECT
    assert set(POINTS) >= UNFAILING


def test_points_are_before_and_after_each_call() -> None:
    assert {"log.append.after", "consumer.commit.before", "state.begin.after", "http.post.after"} <= set(POINTS)
    assert {point.removesuffix(".before") for point in POINTS if point.endswith(".before")} == {
        point.removesuffix(".after") for point in POINTS if point.endswith(".after")
    }


def test_a_failpoint_is_read_from_its_name_number_and_action() -> None:
    assert parse("state.settle.after:3:kill") == Failpoint("state.settle.after", 3, "kill")


@pytest.mark.parametrize(
    "text",
    [
        "kill",
        "state.settle.after",
        "state.settle.after:0:kill",
        "state.settle.after:x:kill",
        "state.settle.after:1",
        "state.settle.after:1:explode",
        "state.settle:1:kill",
        "log.describe.before:1:kill",
        "consumer.poll.after:1:error",
        "consumer.close.before:1:error",
        "state.settle.after@topic:1:kill",
    ],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition(":")[0]):
        parse(text)


# --- the log ----------------------------------------------------------------------------------------------------


async def _log(failpoints: Failpoints) -> tuple[MemoryBroker, Log]:
    """A broker, and its log with these points."""
    broker = MemoryBroker()
    return broker, pointed_log(await opened_log(broker, [TopicSpec("topic", 1)], {"topic": "group"}), failpoints)


RECORD = NewRecord("topic", b"key", b"value")
BEFORE_AND_AFTER = pytest.mark.parametrize(("when", "there"), [("before", 0), ("after", 1)])
"""`there`: how many records of the append are on the log."""


@BEFORE_AND_AFTER
@virtually
async def test_killed_at_its_second_append_a_process_has_appended_once_or_twice(when: str, there: int) -> None:
    broker, pointed = await _log(_at(f"log.append.{when}", 2, "kill"))
    await pointed.append([RECORD])
    with pytest.raises(_Killed):
        await pointed.append([RECORD])
    assert len(broker.records("topic")) == 1 + there


@BEFORE_AND_AFTER
@virtually
async def test_an_error_at_an_append_is_raised_once(when: str, there: int) -> None:
    broker, pointed = await _log(Failpoints(parse(f"log.append.{when}:1:error")))
    with pytest.raises(LogUnavailable, match=f"log.append.{when}"):
        await pointed.append([RECORD])
    assert len(broker.records("topic")) == there
    await pointed.append([RECORD])
    assert len(broker.records("topic")) == there + 1


@virtually
async def test_an_append_can_be_told_from_others_by_what_is_appended() -> None:
    broker, pointed = await _log(Failpoints(parse("log.append.before@failed:2:error")))
    await pointed.create([TopicSpec("t1-failed", 1)], {})
    letter = NewRecord("t1-failed", b"key", b"value")
    await pointed.append([letter])
    await pointed.append([RECORD])
    with pytest.raises(LogUnavailable, match="failed"):
        await pointed.append([RECORD, letter])
    assert len(broker.records("topic")) == 1


@virtually
async def test_an_append_with_a_tombstone_has_a_point_of_its_own() -> None:
    broker, pointed = await _log(_at("log.append.after@tombstone", 1, "kill"))
    await pointed.append([RECORD])
    with pytest.raises(_Killed):
        await pointed.append([NewRecord("topic", b"key", None)])
    assert len(broker.records("topic")) == 2


async def _nothing(_: Sequence[Assignment] | Sequence[TopicPartition]) -> None:
    return


@virtually
async def test_consumers_have_points_of_their_own() -> None:
    failpoints = _at("consumer.commit.after", 1, "kill")
    broker, pointed = await _log(failpoints)
    await pointed.append([RECORD])
    consumer = pointed.consumer(Subscription("group", ["topic"]), _nothing, _nothing)
    await consumer.start()
    partition = TopicPartition("topic", 0)
    while not (await consumer.poll(max_records=10, timeout_s=1)).get(partition):
        pass
    consumer.pause([partition])
    with pytest.raises(_Killed):
        await consumer.commit({partition: 1})
    assert broker.offsets["group", partition] == 1
    assert failpoints.passed["consumer.start.before"] == failpoints.passed["log.append.after"] == 1
    assert failpoints.passed["consumer.poll.before"] >= 1


@virtually
async def test_what_is_no_point_passes_uncounted() -> None:
    failpoints = Failpoints()
    _, pointed = await _log(failpoints)
    assert list(await pointed.describe(["topic"])) == ["topic"]
    assert not failpoints.passed


# --- the state --------------------------------------------------------------------------------------------------


@virtually
async def test_an_error_after_a_call_to_the_state_leaves_its_effect() -> None:
    failpoints = Failpoints(parse("state.arrive.after:1:error"))
    state = pointed_state(MemoryState(), failpoints)
    with pytest.raises(StateUnavailable):
        await answered(state.arrive([ARRIVAL]))
    [row] = await answered(state.arrive([ARRIVAL]))
    assert row is not None


@virtually
async def test_a_pause_freezes_the_process_and_then_goes_on() -> None:
    frozen: list[int] = []
    failpoints = Failpoints(parse("state.arrive.before:2:pause"), freeze=lambda: frozen.append(1))
    state = pointed_state(MemoryState(), failpoints)
    for _ in range(3):
        await answered(state.arrive([ARRIVAL]))
    assert (frozen, failpoints.passed["state.arrive.after"]) == ([1], 3)


# --- the outside ------------------------------------------------------------------------------------------------


async def _exchanged(failpoints: Failpoints, *requests: Request) -> tuple[Surroundings, list[Exchange]]:
    outside = Surroundings()
    transport = PointedTransport(outside, failpoints)
    return outside, [await transport.exchange(request) for request in requests]


@virtually
async def test_a_request_that_fails_before_it_is_sent_is_known_not_to_be() -> None:
    outside, [first, second] = await _exchanged(Failpoints(parse("http.post.before:1:error")), POST, POST)
    assert isinstance(first, NoResponse)
    assert not first.sent
    assert isinstance(second, Response)
    assert outside.arrived("/answer") == ["1"]


@virtually
async def test_one_that_fails_after_it_has_lost_its_answer() -> None:
    outside, [posted] = await _exchanged(Failpoints(parse("http.post.after:1:error")), POST)
    assert isinstance(posted, NoResponse)
    assert posted.sent
    assert outside.arrived("/answer") == ["1"]


@virtually
async def test_posts_and_gets_are_counted_apart() -> None:
    failpoints = Failpoints()
    await _exchanged(failpoints, POST, GET, GET)
    assert failpoints.passed == {
        "http.post.before": 1,
        "http.post.after": 1,
        "http.get.before": 2,
        "http.get.after": 2,
    }


@virtually
async def test_killed_before_a_post_the_receiver_never_hears_of_it() -> None:
    outside = Surroundings()
    transport = PointedTransport(outside, _at("http.post.before", 1, "kill"))
    with pytest.raises(_Killed):
        transport.send(POST, lambda _: None)
    assert (outside.arrived("/answer"), len(outside.tasks)) == ([], 0)


# --- counts -----------------------------------------------------------------------------------------------------


def test_counts_of_several_processes_add_up(tmp_path: Path) -> None:
    for times in (1, 2):
        failpoints = Failpoints()
        for _ in range(times):
            assert not failpoints.fails("log.append.after")
        failpoints.write(tmp_path / "counts")
    assert read_counts(tmp_path / "counts") == {"log.append.after": 3}
    assert read_counts(tmp_path / "nothing") == {}


# --- the command ------------------------------------------------------------------------------------------------


PATCHED = {
    "relay.run.composition": ("kafka_log", "redis_state"),
    "relay.cli.run": ("kafka_log", "redis_state"),
    "relay.delivery.egress": ("transport_of",),
    "relay.run.delivery_part": ("transport_of",),
    "relay.run.processes": ("command",),
}


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the entry patches is put back, wherever it was imported: in other tests, too."""
    originals = [
        (name, getattr(importlib.import_module(module), name)) for module in PATCHED for name in PATCHED[module]
    ]
    for module in list(sys.modules.values()):
        for name, original in originals:
            if vars(module).get(name) is original:
                monkeypatch.setattr(module, name, original)


@pytest.mark.usefixtures("restored")
def test_the_ports_of_production_get_points_wherever_they_are_made() -> None:
    entry.install(Failpoints())
    for module in ("relay.run.composition", "relay.cli.run", "relay.delivery.egress", "relay.run.delivery_part"):
        for name in PATCHED[module]:
            assert getattr(importlib.import_module(module), name).__module__ == entry.__name__
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:9")
    assert isinstance(relay.delivery.egress.transport_of(settings, 100), PointedTransport)


@pytest.mark.usefixtures("restored")
def test_processes_that_it_starts_come_to_it_too() -> None:
    entry.keep_children()
    words = relay.run.processes.command(GroupProcess(0, 2, Path("/sockets")), ProcessPlan(), None)
    assert words[:4] == [sys.executable, "-m", "tests.faults.harness.entry", "run"]


def test_its_variables_are_hidden_from_the_settings_and_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_FAILPOINT", "log.append.after:1:kill")
    monkeypatch.setenv("RELAY_TEST_FAILPOINT", "log.append.after:2:kill")  # of a parent
    assert entry._take("RELAY_FAILPOINT") == "log.append.after:1:kill"
    assert "RELAY_FAILPOINT" not in os.environ
    assert entry._take("RELAY_FAILPOINT") == "log.append.after:1:kill"  # as in a child
    assert entry._take("RELAY_BUG") is None


# --- what kills and freezes -------------------------------------------------------------------------------------


def _process(action: str) -> subprocess.Popen[bytes]:
    code = f"from tests.faults.harness.failpoints import die, freeze; {action}(); print('gone on')"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_frozen_a_process_stands_still_until_it_is_told_to_go_on() -> None:
    with _process("freeze") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate()[0] == b"gone on\n"


def test_killed_it_ends_at_once() -> None:
    with _process("die") as process:
        assert process.communicate()[0] == b""
    assert process.returncode == KILLED
