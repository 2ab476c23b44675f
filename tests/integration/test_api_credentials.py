"""Tests that credentials stay with their origin: a change of the origin has to give them again."""

from typing import Any

import pytest

from tests.fakes.certificates import authority, issued
from tests.integration.api_rig import document, problem
from tests.integration.test_api_registration import URL, Rig
from tests.integration.test_api_registration import rig as rig

KEPT = "kept-for-the-former-origin"
OURS = issued(authority(), "relay.example")
TOKENS = "https://login.example/token"
OAUTH2 = {"token_url": TOKENS, "client_id": "relay", "client_secret": KEPT}
TLS = {"client_certificate": OURS.pem, "client_key": OURS.key_pem}
CREDENTIALS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "token": ({"bearer_token": KEPT}, "/bearer_token", {"bearer_token": "anew"}),
    "header": ({"headers": {"x-key": KEPT}}, "/headers/x-key", {"headers": {"x-key": "anew"}}),
    "client secret": ({"oauth2": OAUTH2}, "/oauth2/client_secret", {"oauth2": {"client_secret": "anew"}}),
    "header of its own request": (
        {"request": {"headers": {"x-key": KEPT}}},
        "/request/headers/x-key",
        {"request": {"headers": {"x-key": "anew"}}},
    ),
    "client key": ({"tls": TLS}, "/tls/client_key", {"tls": {"client_key": OURS.key_pem}}),
}
"""By name: an entry with a credential, the credential's place, and a change that gives it again."""
MOVES: dict[str, dict[str, Any]] = {
    "host": {"post_endpoint": "https://other.example/hooks"},
    "port": {"post_endpoint": "https://ci.example:8443/hooks"},
    "scheme": {"post_endpoint": "http://ci.example/hooks"},
    "status": {"status_endpoint": "https://other.example/{message_id}"},
}
STAYS: dict[str, dict[str, Any]] = {
    "path": {"post_endpoint": "https://ci.example/elsewhere"},
    "port by name": {"post_endpoint": "https://CI.example:443/hooks"},
    "status": {"status_endpoint": "https://ci.example/{message_id}"},
    "nothing": {"rate_limit": 5},
}
credentials = pytest.mark.parametrize("which", CREDENTIALS)


async def change(rig: Rig, patch: dict[str, Any]) -> Any:
    return await rig.ask("PATCH", "/v1/receivers/ci", patch)


@credentials
@pytest.mark.parametrize("move", MOVES)
async def test_with_another_origin_they_have_to_be_given_anew(rig: Rig, which: str, move: str) -> None:
    if (which, move) == ("client key", "scheme"):
        pytest.skip("TLS settings of a plain URL are a mistake of their own")
    if (which, move) == ("header of its own request", "status"):
        pytest.skip("a status GET does not have it")
    fields, place, anew = CREDENTIALS[which]
    await rig.create("ci", **fields)
    before = rig.on_the_log
    reply = await change(rig, MOVES[move])
    found = problem(reply, 409, "credentials-needed")
    assert [error["pointer"] for error in found["errors"]] == [place]
    assert place in found["detail"]
    assert KEPT not in reply.text
    assert rig.on_the_log == before
    document(await change(rig, MOVES[move] | anew))
    document(await change(rig, MOVES[move]))  # they have been given for this origin


@credentials
@pytest.mark.parametrize("stay", STAYS)
async def test_on_the_same_origin_they_stay(rig: Rig, which: str, stay: str) -> None:
    await rig.create("ci", **CREDENTIALS[which][0])
    document(await change(rig, STAYS[stay]))


async def test_the_client_secret_is_of_the_server_that_issues_tokens_too(rig: Rig) -> None:
    await rig.create("ci", oauth2=OAUTH2, headers={"x-key": KEPT})
    elsewhere = {"oauth2": {"token_url": "https://ci.example/token"}}
    found = problem(await change(rig, elsewhere), 409, "credentials-needed")
    assert [error["pointer"] for error in found["errors"]] == ["/oauth2/client_secret"]
    document(await change(rig, {"oauth2": {"token_url": "https://login.example/other"}}))
    document(await change(rig, {"oauth2": {**elsewhere["oauth2"], "client_secret": "anew"}}))


async def test_all_of_them_are_named_and_what_is_taken_away_needs_nothing(rig: Rig) -> None:
    await rig.create("ci", bearer_token=KEPT, headers={"x-key": KEPT, "X-Other": KEPT}, tls=TLS)
    found = problem(await change(rig, MOVES["host"]), 409, "credentials-needed")
    places = ["/bearer_token", "/headers/X-Other", "/headers/x-key", "/tls/client_key"]
    assert sorted(error["pointer"] for error in found["errors"]) == places
    some = {"bearer_token": "anew", "headers": {"x-key": "anew"}, "tls": None}
    found = problem(await change(rig, MOVES["host"] | some), 409, "credentials-needed")
    assert [error["pointer"] for error in found["errors"]] == ["/headers/X-Other"]
    document(await change(rig, MOVES["host"] | some | {"headers": {"x-key": "anew", "X-Other": None}}))
    assert rig.receiver("ci").post.headers == (("x-key", "anew"), ("authorization", "Bearer anew"))


async def test_what_is_shown_in_place_of_a_secret_gives_nothing_anew(rig: Rig) -> None:
    made = await rig.create("ci", bearer_token=KEPT)
    masked = made["settings"]["bearer_token"]
    problem(await change(rig, MOVES["host"] | {"bearer_token": masked}), 422, "invalid-receiver")
    assert rig.receiver("ci").post.url == URL


async def test_in_two_steps_it_is_the_same(rig: Rig) -> None:
    await rig.create("ci", bearer_token=KEPT, status_endpoint="https://ci.example/{message_id}")
    problem(await change(rig, MOVES["status"]), 409, "credentials-needed")
    document(await change(rig, {"status_endpoint": None}))
    problem(await change(rig, MOVES["host"] | MOVES["status"]), 409, "credentials-needed")


@credentials
async def test_a_callback_s_stay_with_its_origin_as_well(rig: Rig, which: str) -> None:
    fields, place, anew = CREDENTIALS[which]
    callback = {"url": "https://sender.example/results", **fields}
    assert (await rig.ask("POST", "/v1/sources", {"source_id": "s", "callback": callback})).status == 201
    moved = {"url": "https://other.example/results"}
    found = problem(await rig.ask("PATCH", "/v1/sources/s", {"callback": moved}), 409, "credentials-needed")
    assert [error["pointer"] for error in found["errors"]] == [f"/callback{place}"]
    document(await rig.ask("PATCH", "/v1/sources/s", {"callback": {"url": "https://sender.example/other"}}))
    document(await rig.ask("PATCH", "/v1/sources/s", {"callback": moved | anew}))
