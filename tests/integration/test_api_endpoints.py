"""Tests of the health of receivers and callbacks over the API: offline, disabled, since when, and resumed."""

from math import inf
from typing import Any
from unittest.mock import ANY

import pytest

from relay.api.receivers import condition
from relay.cli.receivers import receivers
from relay.domain.hold import Hold, decode_hold
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.topics import SHARED
from relay.log.port import NewRecord
from relay.state.attempts import BeginRequest, Change, Limits, PingDue, Settlement
from relay.state.port import EndpointHealth, Lane
from relay.state.replies import answered, of
from relay.state.rows import RowKey
from tests.integration.api_rig import NOW, Rig, document, problem, run_command
from tests.integration.api_rig import rig as rig

POST = Endpoint("https://receiver.example/hooks")
JSON = {"content-type": "application/json"}
LIMITS = Limits(0.0, 25.0, POST.breaker, 25.0)


async def offline(rig: Rig, owner: str, *, disabled: bool) -> None:
    """Offline since NOW; the clock of the state is 11 minutes ahead."""
    failed = [Settlement(RowKey(owner, b"row-%08d" % n), 0, b"", Change.RETRY, healthy=False) for n in range(10)]
    await answered(rig.state.settle(failed))
    rig.state.advance(660.0)
    row = RowKey(owner, b"the-last-row")
    (verdict,) = await answered(
        rig.state.begin(of(Lane("to_receiver_ci", 0, 1), [BeginRequest(row, 0, b"token", LIMITS)]))
    )
    assert isinstance(verdict, PingDue)
    await answered(rig.state.settle([Settlement(row, 0, b"token", Change.RELEASED, healthy=False)]))
    if disabled:
        await rig.state.hold(owner, Hold("disabled", rig.state.now, "it was down for 660 s"))


@pytest.mark.parametrize(("path", "owner"), [("/v1/receivers/ci", "r:ci"), ("/v1/sources/calls/callback", "s:calls")])
async def test_offline_then_disabled_then_resumed(rig: Rig, path: str, owner: str) -> None:
    assert document(await rig.get(path)) == _shown(owner[2:])
    await offline(rig, owner, disabled=False)
    rig.clock.now = NOW + 660
    down = {"failing_since": "2023-11-14T22:13:20.000Z", "breaker": "open", "failures": 10}
    assert document(await rig.get(path)) == _shown(owner[2:], condition="offline", **down)
    rig.state.advance(60.0)
    rig.clock.now = NOW + 720
    paused = document(await rig.request("POST", f"{path}/pause"))
    assert (paused["condition"], paused["failing_since"]) == ("paused", down["failing_since"])
    assert paused["hold"] == {"reason": "paused", "since": "2023-11-14T22:25:20.000Z", "detail": None}
    assert document(await rig.request("POST", f"{path}/resume")) == _shown(owner[2:])
    await offline(rig, owner, disabled=True)
    rig.clock.now = NOW + 1380
    shown = document(await rig.get(path))
    assert (shown["condition"], shown["disabled_since"]) == ("disabled", "2023-11-14T22:36:20.000Z")
    assert (shown["paused"], shown["paused_for_s"]) == (True, None)
    assert document(await rig.request("POST", f"{path}/resume")) == _shown(owner[2:])


LANE = {"lane": "dedicated", "unfinished": 0}


UNDECLARED: dict[str, object] = {
    "declared_by": None,
    "owner": None,
    "labels": {},
    "etag": "",
    "settings": None,
    "given": None,
    "from_preset": None,
}
"""Of a receiver without a record, as here, and as of one that was just removed."""


def _shown(name: str, **other: Any) -> dict[str, Any]:
    about = {**UNDECLARED, "verification": ANY, "hot_since": None} if name == "ci" else {}
    return {
        **about,
        "name": name,
        "condition": "up",
        "health": ANY,
        "refused": None,
        "failing_since": None,
        "disabled_since": None,
        "paused": False,
        "paused_for_s": 0.0,
        "hold": None,
        "breaker": "closed",
        "failures": 0,
        "parked": {"retries": 0, "polls": 0},
        "in_lane": LANE if name == "ci" else None,
    } | other


async def test_a_source_without_a_callback_has_no_health(rig: Rig) -> None:
    problem(await rig.get("/v1/sources/github/callback"), 404, "not-found")
    problem(await rig.request("POST", "/v1/sources/github/callback/resume"), 404, "not-found")


@pytest.mark.parametrize(
    ("health", "word"),
    [
        (EndpointHealth("closed", 0.0, 3, 9_000.0), "up"),
        (EndpointHealth("open", 0.0, 10, 30.0), "failing"),
        (EndpointHealth("half_open", 0.0, 10, 600.0), "offline"),
        (EndpointHealth("closed", 5.0, 1, 60.0), "backing_off"),
        (EndpointHealth("open", 5.0, 10, 600.0), "offline"),
        (EndpointHealth("open", inf, 10, 600.0, Hold("gone", NOW)), "paused"),
        (EndpointHealth("open", inf, 10, 600.0, Hold("disabled", NOW)), "disabled"),
    ],
)
def test_the_condition_in_a_word(health: EndpointHealth, word: str) -> None:
    assert condition(health, POST) == word


async def printed(rig: Rig, *arguments: str) -> str:
    """The output of `relay receivers`, without the name and the newline."""
    result = await run_command(rig.url, receivers, *arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip().partition(": ")[2]


async def test_what_waits_in_the_lane_is_said(rig: Rig) -> None:
    """Nothing of it need be parked: a paused receiver's own lane keeps its messages on the log."""
    topics, log = rig.topics, rig.log
    rig.directory.receivers["many"] = Receiver("many", POST, lane="shared")
    await log.create(topics.lane_specs("ci", 2), topics.lane_groups("ci"))
    sent = [NewRecord(topics.to_receiver("ci"), b"%d" % n, b"{}") for n in range(7)]
    await log.append([*sent, NewRecord(topics.pending("ci"), b"1", b"{}")])
    await log.append([NewRecord(topics.to_receiver(SHARED), b"many", b"{}")] * 3)
    assert document(await rig.get("/v1/receivers/ci"))["in_lane"] == {"lane": "dedicated", "unfinished": 8}
    assert document(await rig.get("/v1/receivers/many"))["in_lane"] == {"lane": "shared", "unfinished": 3}
    assert (await printed(rig, "health", "ci")).endswith("parked: 0; unfinished in its lane: 8")
    shared = "unfinished in its partition of the shared lane, with its neighbours': 3"
    assert (await printed(rig, "health", "many")).endswith(f"parked: 0; {shared}")
    rig.broker.available = False
    assert document(await rig.get("/v1/receivers/ci"))["in_lane"] is None


@pytest.mark.parametrize(("owner", "options"), [("r:ci", []), ("s:calls", ["--callback"])])
async def test_the_command_says_since_when_and_ends_it(rig: Rig, owner: str, options: list[str]) -> None:
    name = owner[2:]
    waiting = "parked: 0" if options else "parked: 0; unfinished in its lane: 0"
    fine = f"not paused; breaker closed; {waiting}"
    assert await printed(rig, "health", name, *options) == fine
    await offline(rig, owner, disabled=False)
    rig.clock.now = NOW + 660
    since = "failing since 2023-11-14T22:13:20.000Z"
    offline_now = f"offline, {since}, and sent nothing but pings; not paused; breaker open; {waiting}"
    assert await printed(rig, "health", name, *options) == offline_now
    assert await printed(rig, "resume", name, *options) == fine
    await offline(rig, owner, disabled=True)
    rig.clock.now = NOW + 1320
    words = await printed(rig, "health", name, *options)
    assert words.startswith("disabled since 2023-11-14T22:35:20.000Z, failing since 2023-11-14T22:24:20.000Z; ")
    assert "paused until it is resumed" in words
    assert await printed(rig, "resume", name, *options) == fine


async def test_a_pause_is_on_the_log_before_anybody_hears_that_it_holds(rig: Rig) -> None:
    rig.broker.available = False
    problem(await rig.request("POST", "/v1/receivers/ci/pause"), 503, "unavailable")
    assert (await rig.state.endpoints(["r:ci"]))[0].hold is None
    rig.broker.available = True
    document(await rig.request("POST", "/v1/receivers/ci/pause", b'{"reason": "moving"}', JSON))
    [record] = rig.records(rig.topics.receiver_config)
    assert record.key == b"hold:r:ci"
    assert decode_hold(record.value or b"") == Hold("paused", NOW, "moving")

    rig.broker.available = False
    problem(await rig.request("POST", "/v1/receivers/ci/resume"), 503, "unavailable")
    assert (await rig.state.endpoints(["r:ci"]))[0].hold is not None
    rig.broker.available = True
    assert document(await rig.request("POST", "/v1/receivers/ci/resume"))["hold"] is None
    assert rig.records(rig.topics.receiver_config)[-1].value is None


async def test_also_while_the_state_is_being_recovered(rig: Rig) -> None:
    """Who is shown is not known then; but what was said holds."""
    rig.state.lose()
    await rig.request("POST", "/v1/receivers/ci/pause")
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    assert document(await rig.get("/v1/receivers/ci"))["hold"]["reason"] == "paused"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"reason": 1}', b'{"why": "moving"}', b"\xff"])
async def test_a_body_that_is_no_reason_pauses_nobody(rig: Rig, body: bytes) -> None:
    problem(await rig.request("POST", "/v1/receivers/ci/pause", body, JSON), 400, "invalid-request")
    assert rig.records(rig.topics.receiver_config) == []


async def test_a_reason_cannot_steer_the_terminal_that_shows_it(rig: Rig) -> None:
    body = b'{"reason": "a\\u001b[31m\\nb\\u202e"}'
    paused = document(await rig.post("/v1/receivers/ci/pause", body, content_type="application/json"))
    assert paused["hold"]["detail"] == "a\\x1b[31m\\x0ab\\u202e"
