"""Tests of wrong queries of the history over the API, and of its routes where there is no history."""

import pytest

from tests.integration.api_rig import Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig

ROUTES = (
    "/v1/messages",
    "/v1/sources/github/messages/m-1/attempts",
    "/v1/receivers/ci/attempts",
    "/v1/stats",
)
MESSAGE = "/v1/sources/github/messages/m-1"


@pytest.mark.parametrize("target", ROUTES)
async def test_without_a_history_a_page_says_how_to_set_one_up(target: str) -> None:
    async with running_api(history=None) as rig:
        refused = problem(await rig.get(target), 503, "no-history")
        assert "RELAY_HISTORY_URL" in refused["detail"]
        assert "relay dev" in (await rig.get(refused["type"])).text


@pytest.mark.parametrize(
    ("query", "parameter", "said"),
    [
        ("source=", "source", "missing or empty"),
        ("source=" + "s" * 257, "source", "256 are allowed"),
        ("source=%01", "source", "control character"),
        ("receiver=CI", "receiver", "not a receiver name"),
        ("owner=", "owner", "missing or empty"),
        ("status=gone", "status", "response_received_from_receiver"),
        ("reason=none", "reason", "exhausted"),
        ("type=", "type", "1 to 1024 bytes"),
        ("since=yesterday", "since", "90m, 2h, 1d"),
        ("since=2026-01-31T12:00:00", "since", "RFC 3339"),
        ("since=2026-99-31T12:00:00Z", "since", "RFC 3339"),
        ("since=" + "9" * 400, "since", "RFC 3339"),
        ("until=1700-01-01T00:00:00Z", "until", "RFC 3339"),
        ("since=1h&until=2h", "until", "not after since"),
        ("id=", "id", "missing or empty"),
        ("header=x-github-event", "header", "x-github-event:push"),
        ("header=:push", "header", "x-github-event:push"),
        ("payload=/a", "payload", "no value"),
        ("payload=a=b", "payload", "begins with /"),
        ("payload=/~2=b", "payload", "~0"),
        ("limit=0", "limit", "1 to 1000"),
        ("cursor=", "cursor", "not issued by this API"),
        ("cursor=" + "c" * 501, "cursor", "not issued by this API"),
        ("cursor=x", "cursor", "not issued by this API"),
        ("reciever=ci", "reciever", "known: source, receiver"),
    ],
)
async def test_a_wrong_filter_is_named_with_what_is_allowed(rig: Rig, query: str, parameter: str, said: str) -> None:
    refused = problem(await rig.get(f"/v1/messages?{query}"), 400, "invalid-request")
    [error] = refused["errors"]
    assert (error["parameter"], said in refused["detail"]) == (parameter, True), refused


@pytest.mark.parametrize(
    ("target", "parameter"),
    [
        (f"{MESSAGE}/attempts?receiver=CI", "receiver"),
        (f"{MESSAGE}/attempts?failed=true", "failed"),
        (f"{MESSAGE}/attempts?cursor=x", "cursor"),
        (f"{MESSAGE}/payload?raw=1", "raw"),
        ("/v1/receivers/ci/attempts?failed=yes", "failed"),
        ("/v1/receivers/ci/attempts?limit=x", "limit"),
        ("/v1/stats?by=day", "by"),
        ("/v1/stats?since=2d&by=minute", "since"),
        ("/v1/stats?since=32d", "since"),
        ("/v1/stats?until=2020-01-01T00:00:00Z&since=2021-01-01T00:00:00Z", "until"),
        ("/v1/stats?since=2999-01-01T00:00:00Z", "since"),
        ("/v1/stats?limit=1", "limit"),
        ("/v1/lanes?receiver=CI", "receiver"),
        (f"{MESSAGE}?receiver=CI", "receiver"),
    ],
)
async def test_the_other_routes_refuse_what_they_do_not_know(rig: Rig, target: str, parameter: str) -> None:
    refused = problem(await rig.get(target), 400, "invalid-request")
    assert [error["parameter"] for error in refused["errors"]] == [parameter]


async def test_what_there_is_not_is_not_found_by_administrators(rig: Rig) -> None:
    for target in (f"{MESSAGE}/attempts", f"{MESSAGE}/payload", "/v1/receivers/nobody/attempts"):
        problem(await rig.get(target), 404, "not-found")
    assert document(await rig.get("/v1/receivers/ci/attempts")) == {"items": [], "cursor": None}
    assert document(await rig.get("/v1/messages")) == {"items": [], "cursor": None, "behind_s": 0.0}
