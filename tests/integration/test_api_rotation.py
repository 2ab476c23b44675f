"""Tests of signing secrets that are rotated over HTTP, on a real registry and an in-memory log."""

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator

import pytest

from relay.domain.requests import ping_request
from relay.domain.signing import generate_secret, verify_standard
from tests.integration.api_rig import document, problem
from tests.integration.test_api_registration import CANARY, JSON, RING, URL, Rig, running

PRIVATE = "whsk_" + base64.b64encode(b"p" * 32).decode()
DAY_S = 86_400


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running(RING, lambda: generate_secret(secrets.token_bytes)) as rig:
        yield rig


def verifies(rig: Rig, secret: str, at: float) -> bool:
    """Whether `secret` verifies what the receiver `ci` would be sent at that moment."""
    request = ping_request(rig.receiver("ci").post, "1", now=at, user_agent="relay/test")
    return verify_standard([secret], dict(request.headers), request.body, at)


async def test_the_new_secret_is_told_once_and_the_former_one_signs_along_for_the_grace_time(rig: Rig) -> None:
    made, now = await rig.create("ci"), time.time()
    reply = await rig.ask("POST", "/v1/receivers/ci/rotate", {"grace": "10m"})
    told = document(reply)
    assert (reply.status, reply.headers["ETag"]) == (200, f'"{told["etag"]}"')
    assert (told["etag"] == made["etag"], told["secret"] == made["secret"], told["public_key"]) == (False, False, None)
    for at, former in ((now, True), (now + 590, True), (now + 660, False)):
        assert verifies(rig, told["secret"], at)
        assert verifies(rig, made["secret"], at) is former
    shown = await rig.ask("GET", "/v1/receivers/ci")
    [known] = document(shown)["settings"]["former_secrets"]
    assert known["secret"] == "********"
    assert now + 600 <= known["until"] < now + 660
    for secret in (made["secret"], told["secret"]):
        assert secret not in shown.text
        assert secret.encode() not in rig.on_the_log
    assert set(rig.receiver("ci").post.secrets) >= {made["secret"], told["secret"]}  # masked in what it says


async def test_the_grace_is_a_day_where_nothing_is_said_and_none_where_it_is_0(rig: Rig) -> None:
    first, now = (await rig.create("ci"))["secret"], time.time()
    second = document(await rig.ask("POST", "/v1/receivers/ci/rotate"))
    assert verifies(rig, first, now + DAY_S - 10)
    assert not verifies(rig, first, now + DAY_S + 60)
    third = document(await rig.ask("POST", "/v1/receivers/ci/rotate", {"grace": 0}))
    assert third["former_until"] is None
    assert (verifies(rig, second["secret"], now), verifies(rig, first, now)) == (False, True)
    # all former secrets can be removed at once
    assert (await rig.ask("PATCH", "/v1/receivers/ci", {"former_secrets": None})).status == 200
    assert not verifies(rig, first, now)


async def test_expired_ones_go_with_the_next_change(rig: Rig) -> None:
    expired, kept = {"secret": "a-b-c", "until": 1}, {"secret": "d-e-f", "until": "2100-01-01T00:00:00Z"}
    await rig.create("ci", secret=CANARY, former_secrets=[expired, kept])
    changed = document(await rig.ask("PATCH", "/v1/receivers/ci", {"timeout": 3}))
    assert [former["until"] for former in changed["settings"]["former_secrets"]] == [4_102_444_800]


async def test_a_secret_may_be_given_and_is_not_told_then(rig: Rig) -> None:
    await rig.create("ci", secret="the-former-one")
    reply = await rig.ask("POST", "/v1/receivers/ci/rotate", {"secret": CANARY})
    assert (document(reply)["secret"], CANARY in reply.text) == (None, False)
    assert rig.receiver("ci").post.signing.secrets == (CANARY,)


async def test_of_a_private_key_the_public_one_is_told(rig: Rig) -> None:
    await rig.create("ci", secret=PRIVATE)
    reply = await rig.ask("POST", "/v1/receivers/ci/rotate")
    view, signing = document(reply), rig.receiver("ci").post.signing
    assert (view["secret"], "whsk_" in reply.text) == (None, False)
    assert verifies(rig, view["public_key"], time.time())
    assert (len(signing.private_keys), [former.secret for former in signing.former]) == (1, [PRIVATE])


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"grace": "soon"}, 400, "/grace"),
        ({"grace": -1}, 400, "/grace"),
        ({"grace": "366d"}, 400, "/grace"),
        ({"grace": []}, 400, "/grace"),
        ({"secret": 1}, 400, "/secret"),
        ({"canary": CANARY}, 400, "/canary"),
        ({"secret": ""}, 422, "/secret"),
        ({"secret": f"whsec_{CANARY}"}, 422, "/secret"),
        ({"secret": "${OTHER}"}, 422, "/secret"),
    ],
)
async def test_mistakes_have_their_places_and_nothing_is_changed(
    rig: Rig, body: object, status: int, pointer: str
) -> None:
    before = (await rig.create("ci", secret="the-present-one"))["etag"]
    reply = await rig.ask("POST", "/v1/receivers/ci/rotate", body)
    found = problem(reply, status, "invalid-request" if status == 400 else "invalid-receiver")
    assert [error["pointer"] for error in found["errors"]] == [pointer]
    assert (CANARY if "whsec_" in json.dumps(body) else "the-present-one") not in reply.text
    assert document(await rig.ask("GET", "/v1/receivers/ci"))["etag"] == before


async def test_who_is_not_signed_has_no_secret_to_rotate(rig: Rig) -> None:
    await rig.create("ci", signature="none")
    problem(await rig.ask("POST", "/v1/receivers/ci/rotate"), 422, "invalid-receiver")


async def test_what_the_file_declares_is_rotated_there_and_what_was_seen_alone_is_changed(rig: Rig) -> None:
    await rig.file(filed={"post_endpoint": URL})
    etag = (await rig.create("ci"))["etag"]
    problem(await rig.ask("POST", "/v1/receivers/filed/rotate"), 409, "declared-in-file")
    problem(await rig.ask("POST", "/v1/receivers/nobody/rotate"), 404, "not-found")
    seen = JSON | {"If-Match": f'"{etag}"'}
    assert (await rig.ask("POST", "/v1/receivers/ci/rotate", {}, seen)).status == 200
    problem(await rig.ask("POST", "/v1/receivers/ci/rotate", {}, seen), 412, "changed-meanwhile")
