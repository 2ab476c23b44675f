"""Tests of the relay's own events: which receivers get which, once and signed; and that no event causes another without
end."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import relay_dev

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
PATIENCE_S = 200.0
RETRIED: dict[str, Any] = {
    "retry": {"base": "200ms", "cap": "200ms", "max_attempts": 1000},
    "breaker": {"failures": 2, "open_for": "300ms"},
}
OFFLINE_SOON = RETRIED | {"offline": {"after": "1s", "ping_every": "1s", "disable_after": "1h"}}
DISABLED_SOON = RETRIED | {"offline": {"after": "1s", "ping_every": "1s", "disable_after": "5s"}}
OURS = {"sources": ["relay"], "event_types": ["*"], "secret": SECRET}


@pytest.fixture
async def sinks() -> AsyncIterator[dict[str, Sink]]:
    found = {name: Sink("answer", secret=SECRET) for name in ("ops", "acme", "beta", "all", "weak", "frail", "shut")}
    async with started(*found.values()):
        yield found


def _events(sink: Sink) -> list[dict[str, Any]]:
    """Bodies of the received events, without pings."""
    return [json.loads(arrival.body) for arrival in sink.received if arrival.event_type != "relay.ping"]


def _is_incident(event: dict[str, Any]) -> bool:
    return str(event["type"]).startswith("incident.")


def _incident_of(event: dict[str, Any]) -> tuple[str, str | None, str | None]:
    return event["type"], event.get("kind"), event.get("receiver")


async def _until(sink: Sink, seen: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    while not seen(_events(sink)):
        await sink.wait_for(len(sink.received) + 1, PATIENCE_S)
    return _events(sink)


async def _until_received(sink: Sink, *types: str) -> list[dict[str, Any]]:
    return await _until(sink, lambda told: not Counter(types) - Counter(each["type"] for each in told))


async def test_operators_hear_of_all_and_owners_of_their_own(tmp_path: Path, sinks: dict[str, Sink]) -> None:
    receivers: dict[str, dict[str, Any]] = {
        "ops": {**OURS},
        "acme-hears": {**OURS, "owner": "acme"},
        "beta-hears": {**OURS, "owner": "beta"},
        "all": {**OURS, "sources": ["*"]},
        "weak": {**OFFLINE_SOON, "owner": "acme"},
        "frail": {**DISABLED_SOON, "owner": "acme"},
        "shut": {"retry": {"max_attempts": 1}},
    }
    urls = {"acme-hears": "acme", "beta-hears": "beta"}
    for name, entry in receivers.items():
        entry["post_endpoint"] = sinks[urls.get(name, name)].url
    sources = {"*": {"callback": {"url": sinks["all"].url, "signature": "none"}}}
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers, "sources": sources}))
    for name in ("weak", "frail"):
        sinks[name].become("fail", fail_status=500)
    sinks["shut"].become("fail", fail_status=410)
    async with relay_dev(tmp_path) as dev:
        for name in ("weak", "frail", "shut"):
            await relay(dev, "send", "--source", "github", "--receiver", name, "--id", f"to-{name}", "-", stdin=b"{}")
        await _until_received(sinks["ops"], "receiver.offline", "receiver.offline")
        sinks["weak"].become("answer")
        of_weak_and_frail = ("receiver.offline", "receiver.offline", "receiver.back", "receiver.disabled")
        await _until_received(sinks["ops"], *of_weak_and_frail, "receiver.gone", "message.failed")
        await _until_received(sinks["acme"], *of_weak_and_frail)
        opened = ("incident.opened", "gone", "shut")
        incidents = await _until(sinks["ops"], lambda told: opened in map(_incident_of, told))
        incidents = [each for each in incidents if _is_incident(each)]
        assert all(each["page"] == f"/ui/incidents/{each['id']}" for each in incidents)
        events = [each for each in _events(sinks["ops"]) if not _is_incident(each)]
        found = Counter((each["type"], each["receiver"]) for each in events)
        assert found == {
            ("receiver.offline", "weak"): 1,
            ("receiver.back", "weak"): 1,
            ("receiver.offline", "frail"): 1,
            ("receiver.disabled", "frail"): 1,
            ("receiver.gone", "shut"): 1,
            ("message.failed", "shut"): 1,
        }
        failed = next(each for each in events if each["type"] == "message.failed")
        assert (failed["count"], failed["reasons"], failed["owner"]) == (1, {"gone": 1}, None)
        [example] = failed["examples"]
        assert (example["source_id"], example["message_id"]) == ("github", "to-shut")
        assert (example["attempts"], example["page"]) == (1, "/ui/messages/github/to-shut")
        code, output = await relay(dev, "failed", "show", example["path"].removeprefix("/v1/failed/"))
        assert (code, "to-shut" in output) == (0, True), output
        gone = next(each for each in sinks["ops"].received if each.event_type == "receiver.gone")
        code, output = await relay(dev, "status", "--watch", "relay", gone.message_id)
        assert (code, "ops       delivered" in output) == (0, True), output
        assert Counter(each["type"] for each in _events(sinks["acme"]) if not _is_incident(each)) == {
            "receiver.offline": 2,
            "receiver.back": 1,
            "receiver.disabled": 1,
        }
        assert {each["owner"] for each in _events(sinks["acme"])} == {"acme"}
        assert all(arrival.verified for sink in ("ops", "acme") for arrival in sinks[sink].received)
        assert _events(sinks["beta"]) == []
        # who subscribes to all sources, or is the callback of all, hears nothing of it
        assert {arrival.source_id for arrival in sinks["all"].received} <= {"github", ""}
        assert not any(arrival.headers.get("relay-source") == "relay" for arrival in sinks["all"].received)


async def test_two_that_are_told_of_everything_and_are_both_down_lead_to_no_event_about_each_other(
    tmp_path: Path, sinks: dict[str, Sink]
) -> None:
    receivers = {
        "ops": {**OURS, **DISABLED_SOON, "post_endpoint": sinks["ops"].url},
        "ops-2": {**OURS, **DISABLED_SOON, "post_endpoint": sinks["all"].url},
        "shut": {"post_endpoint": sinks["shut"].url},
    }
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
    sinks["shut"].become("fail", fail_status=410)
    for name in ("ops", "all"):
        sinks[name].become("fail", fail_status=500)
    async with relay_dev(tmp_path) as dev:
        await relay(dev, "send", "--source", "github", "--receiver", "shut", "--id", "m-1", "-", stdin=b"{}")
        # both are disabled in the end; each is to get the event about the other, but is down itself
        await dev.lines_with("endpoint_disabled", 2)
        for name in ("ops", "all"):
            sinks[name].become("answer")
        for name in ("ops", "ops-2"):
            await relay(dev, "receivers", "resume", name)
        wanted = ("receiver.gone", "message.failed", "receiver.disabled")
        for name in ("ops", "all"):
            await _until_received(sinks[name], *wanted)
        ids = {
            arrival.message_id
            for name in ("ops", "all")
            for arrival in sinks[name].received
            if arrival.source_id == "relay" and str(arrival.event_type).startswith(("receiver.", "message."))
        }
        assert Counter(id.split(":")[0] for id in ids) == {
            "receiver.gone": 1,
            "message.failed": 1,
            "receiver.disabled": 2,
        }
