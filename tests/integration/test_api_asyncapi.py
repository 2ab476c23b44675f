"""Tests of the AsyncAPI document of the topics: it is valid, has every topic and header, and its examples match."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from relay.api.asyncapi import ENVELOPE, EVENT, HOP, LETTER, RESULT, HeaderSpec, asyncapi
from relay.cli.config import config
from relay.domain import hop, message, timing
from relay.domain.audit import AuditLine, encode_line
from relay.domain.coordinate import Coordinate, Headers
from relay.domain.dead_letter import OURS, DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.domain.one_off import OneOff
from relay.domain.result_delivery import notice_body
from relay.domain.topics import Topics
from tests.integration.api_rig import document, running_api

DELIVERY = DeliveryId("ci", "github", "m-1")
ORIGIN = Coordinate("from_sender", 3, 17)
FULL = Hop(
    DELIVERY,
    event_type="push",
    time="2026-01-01T00:00:00Z",
    content_type="application/json",
    attempt=2,
    generation=1,
    sequence=7,
    origin=ORIGIN,
    accepted_ms=1,
    outcome="failed",
    answer_status=422,
    answer_truncated=True,
    reason="rejected",
    status_url="https://receiver.example/1",
    ask_after_s=1e-7,
    not_asked="it is of another origin",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tracestate="vendor=1",
    move=1,
    ask_first=True,
    wait_s=10,
    headers=(("x-team", "core"),),
    order="0123456789abcdef01234567",
    life="7-1767225600",
    keep='{"sha":"0a1"}',
    sealed=True,
    chain='{"step":1}',
    timing=timing.Timing(1_800_000_000.0, 1_800_003_600.5),
    one_off=OneOff("https://hooks.example/a", "sealed"),
)
EVERYTHING = Message(
    "github",
    "m-1",
    ("ci", "cd"),
    "push",
    FULL.time,
    "text/plain",
    b"{}",
    FULL.traceparent,
    10,
    FULL.headers,
    "a=1",
    FULL.timing,
)


@pytest.fixture
def whole() -> dict[str, Any]:
    return asyncapi(Topics("p."))


def names(headers: tuple[HeaderSpec, ...]) -> set[str]:
    return {header.name for header in headers}


async def test_it_is_served_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_api(api_key="a key that nobody needs here") as rig:
        served = document(await rig.get("/asyncapi.json"))
    monkeypatch.setenv("RELAY_TOPIC_PREFIX", "t-")
    assert json.loads(CliRunner().invoke(config, ["asyncapi"], catch_exceptions=False).output) == served
    assert served == msgspec.json.decode(msgspec.json.encode(asyncapi(Topics("t-"))))


def test_it_is_sound(whole: dict[str, Any]) -> None:
    """What AsyncAPI 3.0 requires, and that every reference leads somewhere."""
    assert whole["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= whole["info"].keys()
    for reference in references(whole):
        node: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    for name, operation in whole["operations"].items():
        assert operation["action"] in ("send", "receive")
        assert name == f"{operation['action']}_{operation['channel']['$ref'].rpartition('/')[2]}"
        prefix = operation["channel"]["$ref"] + "/messages/"
        assert all(one["$ref"].startswith(prefix) for one in operation["messages"])
    for channel in whole["channels"].values():
        in_address = {part.split("}")[0] for part in channel["address"].split("{")[1:]}
        assert in_address == channel.get("parameters", {}).keys()
    for one in whole["components"]["messages"].values():
        for schema in (one["headers"], one.get("payload", {})):
            Draft202012Validator.check_schema(schema)


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == "$ref")
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_topic_is_there(whole: dict[str, Any]) -> None:
    """A new one needs a channel."""
    addresses = {channel["address"].replace("{lane}", "shared") for channel in whole["channels"].values()}
    assert addresses == {spec.name for spec in Topics("p.").fixed()}
    others = {name for name, channel in whole["channels"].items() if "x-relay-internal" not in channel}
    assert others == {"from_sender", "to_sender", "failed_messages", "audit"}
    groups = {
        operation["bindings"]["kafka"]["groupId"]["const"]
        for operation in whole["operations"].values()
        if "bindings" in operation
    }
    topics = Topics("p.")
    assert groups == {*topics.fixed_groups().values(), *topics.informational_groups().values()}


def test_every_header_is_there_and_no_other() -> None:
    """A new one needs an entry in relay/api/asyncapi.py."""
    assert names(EVENT) == {"ce_specversion", *message._READERS, *timing.HEADERS}
    assert names(ENVELOPE) < names(EVENT)
    assert names(HOP) == set(hop._READERS)
    assert {name for name, _ in encode_hop(FULL)} - {"relay-header-x-team"} == names(HOP)
    assert {name for name, _ in result_headers(FULL)} - {"relay-header-x-team"} == names(RESULT)
    assert names(LETTER) == OURS | {"relay-original-reason", "relay-original-origin"}
    assert {name for name, _ in result_headers(Hop(DELIVERY))} == {one.name for one in RESULT if one.always}
    assert {name for name, _ in encode_hop(Hop(DELIVERY))} == {one.name for one in HOP if one.always}


def letter(record: Headers) -> Headers:
    return dead_letter_headers(
        record, DeadLetter("poison", "it broke", "to_sender", ORIGIN, 1, 2, 500, "value=1", "gone")
    )


NOTICE = notice_body(DELIVERY, 0, reason="rejected", detail="no", attempts=1, last_status=422)
LINE = AuditLine("1", "2026-01-01T00:00:00Z", "anybody", None, "receiver.paused", "ci", None, "done", 200)


@pytest.mark.parametrize(
    ("form", "headers", "value"),
    [
        ("event", message_headers(EVERYTHING), None),
        ("event", message_headers(Message("github", "m-1", None)), None),
        ("envelope", (), b'{"source_id": "s", "message_id": "m", "receiver": ["ci"], "payload": [1]}'),
        ("delivery", encode_hop(FULL), None),
        ("pending", encode_hop(Hop(DELIVERY)), None),
        ("result", result_headers(Hop(DELIVERY, outcome="answered", answer_status=200)), None),
        ("failure", result_headers(FULL), NOTICE),
        ("deadLetter", letter(result_headers(FULL)), None),
        ("deadLetter", letter(()), None),
        ("auditLine", (), encode_line(LINE)),
    ],
)
def test_what_is_written_is_as_it_says(whole: dict[str, Any], form: str, headers: Headers, value: bytes | None) -> None:
    told = whole["components"]["messages"][form]
    conforms({name: text.decode() for name, text in headers}, told["headers"], whole)
    assert (value is None) == ("payload" not in told)
    if value is not None:
        conforms(json.loads(value), told["payload"], whole)


@pytest.mark.parametrize("headers", [{}, {"ce_id": "m", "ce_source": ""}, {"ce_id": "m" * 257, "ce_source": "s"}])
def test_what_would_be_refused_is_none(whole: dict[str, Any], headers: Mapping[str, str]) -> None:
    schema = whole["components"]["messages"]["event"]["headers"]
    assert not Draft202012Validator(schema).is_valid(headers)


def conforms(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    Draft202012Validator({**schema, "components": whole["components"]}).validate(value)
