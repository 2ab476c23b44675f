"""Tests of quotas of API keys and sources: messages above them are refused, and responses report the rest."""

import base64
import hashlib
import hmac
import json
import re

import pytest

from relay.domain.receiver import Inbound, Quota
from tests.fakes.steps import CountingMeter
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig

CI = "/v1/sources/app/messages?receiver=ci"
BATCH = "/v1/sources/app/messages:batch?receiver=ci"
KEY = {"Authorization": "Bearer k"}
GITHUB = Inbound("github", ("s",), receivers=("ci",))
BODY = b'{"action": "opened"}'
_ITEM = re.compile(r'"([a-z]+)"((?:;[a-z]+=(?:[0-9]+|:[A-Za-z0-9+/=]*:))*)')


def structured(reply: Reply, field: str) -> dict[str, dict[str, str]]:
    """A structured field (RFC 9651): a list of strings with parameters."""
    found = {}
    for text in reply.headers[field].split(", "):
        item = _ITEM.fullmatch(text)
        assert item is not None, text
        found[item[1]] = dict(part.split("=", 1) for part in item[2].split(";")[1:])
    return found


def lines(count: int) -> bytes:
    return b"\n".join(json.dumps({"payload": n}).encode() for n in range(count))


def stored(rig: Rig) -> int:
    return len(rig.records(rig.topics.from_sender))


def signed(delivery: str, key: bytes = b"s") -> dict[str, str]:
    mac = hmac.new(key, BODY, hashlib.sha256).hexdigest()
    return {"x-github-event": "issues", "x-github-delivery": delivery, "x-hub-signature-256": f"sha256={mac}"}


async def test_beyond_its_quota_a_source_is_told_when_to_come_again() -> None:
    meter = CountingMeter()
    async with running_api(meter=meter) as rig:
        rig.directory.quotas["app"] = Quota(2, 60)
        first = await rig.post(CI)
        of = f":{base64.b64encode(b'app').decode()}:"
        assert structured(first, "RateLimit-Policy") == {"source": {"q": "2", "w": "60", "pk": of}}
        assert structured(first, "RateLimit") == {"source": {"r": "1", "t": "60", "pk": of}}
        rig.state.advance(19.5)
        assert structured(await rig.post(CI), "RateLimit") == {"source": {"r": "0", "t": "41", "pk": of}}
        refused = await rig.post(CI)
        problem(refused, 429, "quota-exceeded")
        assert refused.headers["Retry-After"] == "41"
        assert structured(refused, "RateLimit")["source"]["r"] == "0"
        assert stored(rig) == 2
        assert (await rig.post("/v1/sources/other/messages?receiver=ci")).status == 202
        rig.state.advance(41)
        assert (await rig.post(CI)).status == 202
        assert meter.told == [("over_quota", "source", 1)]


async def test_without_a_quota_nothing_is_counted_nor_told(rig: Rig) -> None:
    rig.state.away.add("charge")
    reply = await rig.post(CI)
    assert (reply.status, "RateLimit" in reply.headers) == (202, False)
    assert rig.state.asked.count("charge") == 0


async def test_sources_without_a_quota_of_their_own_have_the_usual_one_each() -> None:
    async with running_api(source_quota=Quota(1, 60)) as rig:
        rig.directory.quotas |= {"free": "none", "large": Quota(3, 60)}
        statuses = {
            source: [(await rig.post(f"/v1/sources/{source}/messages?receiver=ci")).status for _ in range(4)]
            for source in ("app", "other", "free", "large")
        }
        assert statuses == {
            "app": [202, 429, 429, 429],
            "other": [202, 429, 429, 429],
            "free": [202, 202, 202, 202],
            "large": [202, 202, 202, 429],
        }


async def test_a_batch_counts_its_messages_and_is_taken_whole_or_not_at_all(rig: Rig) -> None:
    rig.directory.quotas["app"] = Quota(5, 60)
    headers = {"Content-Type": "application/x-ndjson"}
    reply = await rig.request("POST", BATCH, lines(3) + b"\n[]", headers)
    assert (document(reply)["accepted"], document(reply)["rejected"]) == (3, 1)
    assert structured(reply, "RateLimit")["source"]["r"] == "2"
    refused = await rig.request("POST", BATCH, lines(3), headers)
    assert "room for 2 more" in problem(refused, 429, "quota-exceeded")["detail"]
    assert (await rig.request("POST", BATCH, lines(2), headers)).status == 200
    never = await rig.request("POST", BATCH, lines(6), headers)
    problem(never, 413, "too-large")
    assert (structured(never, "RateLimit-Policy")["source"]["q"], "Retry-After" in never.headers) == ("5", False)
    assert stored(rig) == 5


async def test_webhooks_count_once_their_signature_is_right(rig: Rig) -> None:
    rig.directory.inbound["app"] = GITHUB
    rig.directory.quotas["app"] = Quota(2, 60)
    for n in range(5):
        forged = await rig.request("POST", "/v1/in/app", BODY, signed(f"f-{n}", b"not the secret"))
        problem(forged, 401, "bad-signature")
        assert "RateLimit" not in forged.headers  # unauthenticated callers do not learn how busy a source is
    problem(await rig.request("POST", "/v1/in/app", BODY, signed("")), 400, "invalid-request")
    for n in range(2):
        reply = await rig.request("POST", "/v1/in/app", BODY, signed(f"d-{n}"))
        assert (reply.status, structured(reply, "RateLimit")["source"]["r"]) == (202, str(1 - n))
    refused = await rig.request("POST", "/v1/in/app", BODY, signed("d-2"))
    problem(refused, 429, "quota-exceeded")
    assert refused.headers["Retry-After"] == "60"
    assert stored(rig) == 2


async def test_a_batch_of_cloudevents_counts_each_event(rig: Rig) -> None:
    headers = {"content-type": "application/cloudevents-batch+json", "authorization": "Bearer t"}

    def events(*ids: str) -> bytes:
        return json.dumps([{"specversion": "1.0", "id": one, "source": "x", "type": "t"} for one in ids]).encode()

    rig.directory.inbound["app"] = Inbound("cloudevents", ("t",), receivers=("ci",))
    rig.directory.quotas["app"] = Quota(3, 60)
    assert (await rig.request("POST", "/v1/in/app", events("1", "2"), headers)).status == 202
    problem(await rig.request("POST", "/v1/in/app", events("3", "4"), headers), 429, "quota-exceeded")
    assert stored(rig) == 2


async def test_the_key_has_a_quota_of_its_own_over_all_sources() -> None:
    meter = CountingMeter()
    async with running_api(api_key="k", key_quota=Quota(2, 10), source_quota=Quota(3, 60), meter=meter) as rig:
        rig.directory.inbound["app"] = GITHUB
        problem(await rig.post(CI), 401, "unauthorized")
        reply = await rig.request("POST", CI, b"{}", KEY)
        assert structured(reply, "RateLimit-Policy")["key"] == {"q": "2", "w": "10"}
        assert {name: part["r"] for name, part in structured(reply, "RateLimit").items()} == {"key": "1", "source": "2"}
        assert (await rig.request("POST", "/v1/sources/b/messages?receiver=ci", b"{}", KEY)).status == 202
        refused = await rig.request("POST", CI, b"{}", KEY)
        problem(refused, 429, "quota-exceeded")
        assert (refused.headers["Retry-After"], list(structured(refused, "RateLimit"))) == ("10", ["key"])
        # what the key may not send does not use up what the source may; and signed webhooks come without the key
        for n in range(2):
            assert (await rig.request("POST", "/v1/in/app", BODY, signed(f"d-{n}"))).status == 202
        problem(await rig.request("POST", "/v1/in/app", BODY, signed("d-2")), 429, "quota-exceeded")
        assert meter.told == [("over_quota", "key", 1), ("over_quota", "source", 1)]


async def test_each_key_that_was_made_has_the_quota_for_itself() -> None:
    async with running_api(api_key="k", key_quota=Quota(1, 60)) as rig:
        made = [{"Authorization": f"Bearer {await rig.keys.make('ingest:*', now=NOW)}"} for _ in range(2)]
        for expected in (202, 429):
            replies = [await rig.request("POST", CI, b"{}", key) for key in (KEY, *made)]
            assert [reply.status for reply in replies] == [expected] * 3


async def test_while_the_state_is_away_messages_come_in_uncounted() -> None:
    async with running_api(source_quota=Quota(1, 60)) as rig:
        rig.state.away.add("charge")
        for _ in range(2):
            reply = await rig.post(CI)
            assert (reply.status, "RateLimit" in reply.headers) == (202, False)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_only_what_brings_messages_counts(method: str) -> None:
    async with running_api(api_key="k", key_quota=Quota(1, 60), source_quota=Quota(1, 60)) as rig:
        for _ in range(3):
            assert (await rig.request(method, "/v1/sources/app/messages/m-1", headers=KEY)).status in (404, 405)
        assert (await rig.request("POST", CI, b"{}", KEY)).status == 202
