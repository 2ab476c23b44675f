"""Tests of sources that are declared, changed, listed and removed over HTTP, on real registries and an in-memory
log."""

import json
from typing import Any

import pytest

from relay.cli.sources import sources
from relay.config.receivers_file import parse_receivers_file
from relay.control.apply import apply_file
from relay.domain.receiver import Source
from tests.expecting import present
from tests.integration.api_rig import document, problem, run_command
from tests.integration.test_api_registration import CANARY, JSON, MADE, Rig
from tests.integration.test_api_registration import rig as rig

URL = "https://sender.example/results"


async def create(rig: Rig, source_id: str, **fields: object) -> Any:
    reply = await rig.ask("POST", "/v1/sources", {"source_id": source_id, **fields})
    assert reply.status == 201, reply.text
    return document(reply)


def source(rig: Rig, source_id: str, of: int = 0) -> Source:
    return rig.registries[of].source(source_id)


async def apply(rig: Rig, **declared: object) -> Any:
    file = parse_receivers_file(json.dumps({"sources": declared}))
    return await apply_file(rig.api.log, file, rig.api.topics, prune=True)


async def test_a_source_is_in_force_once_it_is_made_and_its_secrets_are_encrypted(rig: Rig) -> None:
    inbound = {"kind": "github", "secret": [CANARY, f"{CANARY}-2"]}
    told = await create(rig, "a/b", callback={"url": URL, "secret": CANARY}, inbound=inbound, answers="non_empty")
    assert (told["source_id"], told["declared_by"], told["secret"], told["refused"]) == ("a/b", "api", None, None)
    assert told["settings"]["callback"]["url"] == URL
    assert told["settings"]["answers"] == "non_empty"
    found = source(rig, "a/b")
    assert found.callback is not None
    assert found.callback.signing.secrets == (CANARY,)
    assert found.inbound is not None
    assert found.inbound.secrets == (CANARY, f"{CANARY}-2")
    shown = await rig.ask("GET", "/v1/sources/a%2Fb")
    assert document(shown) == {name: value for name, value in told.items() if name != "secret"}
    assert shown.headers["ETag"] == f'"{told["etag"]}"'
    listed = await rig.ask("GET", "/v1/sources")
    assert CANARY not in json.dumps(told) + shown.text + listed.text
    assert CANARY.encode() not in rig.on_the_log


async def test_a_callback_without_a_secret_gets_one_that_is_told_once(rig: Rig) -> None:
    told = await create(rig, "shop", callback={"url": URL})
    assert told["secret"] == MADE
    found = present(source(rig, "shop").callback)
    assert found.signing.secrets == (MADE,)
    assert MADE not in (await rig.ask("GET", "/v1/sources/shop")).text
    for unsigned in ({"callback": "kafka"}, {"callback": {"url": URL, "signature": "none"}}, {}):
        name = f"s-{len(json.dumps(unsigned))}"
        assert (await create(rig, name, **unsigned))["secret"] is None
    assert (await rig.ask("POST", "/v1/sources", {"source_id": "shop"})).status == 409


async def test_a_change_is_a_merge_patch_of_what_the_etag_stands_for(rig: Rig) -> None:
    told = await create(rig, "shop", callback={"url": URL, "secret": CANARY, "timeout": 3}, failures=False)
    match = JSON | {"If-Match": f'"{told["etag"]}"'}
    reply = await rig.ask("PATCH", "/v1/sources/shop", {"callback": {"timeout": 4}, "failures": None}, match, of=1)
    changed = document(reply)
    assert (reply.status, changed["settings"]["failures"], changed["settings"]["callback"]["timeout"]) == (200, True, 4)
    callback = present(source(rig, "shop", of=1).callback)
    assert (callback.timeout, callback.signing.secrets) == (4, (CANARY,))
    problem(await rig.ask("PATCH", "/v1/sources/shop", {"failures": False}, match), 412, "changed-meanwhile")
    problem(await rig.ask("DELETE", "/v1/sources/shop", headers=match), 412, "changed-meanwhile")


async def test_removing_tells_what_becomes_of_results_first(rig: Rig) -> None:
    await create(rig, "shop", callback={"url": URL})
    told = document(await rig.ask("DELETE", "/v1/sources/shop?dry_run=true"))
    assert (told["removed"], told["results"]["parked"]) == (False, {"retries": 0, "polls": 0})
    assert source(rig, "shop").callback is not None
    assert document(await rig.ask("DELETE", "/v1/sources/shop"))["removed"] is True
    assert source(rig, "shop") == Source("shop")
    problem(await rig.ask("DELETE", "/v1/sources/shop"), 404, "not-found")
    problem(await rig.ask("GET", "/v1/sources/shop"), 404, "not-found")


async def test_a_file_and_the_api_leave_alone_what_the_other_declares(rig: Rig) -> None:
    await create(rig, "theirs", callback="kafka")
    diff = await apply(rig, ours={"answers": "none"}, theirs={"answers": "none"}, **{"*": {}})
    assert (diff.added, diff.removed, diff.refused) == (("source:*", "source:ours"), (), ("source:theirs",))
    assert source(rig, "theirs").kafka
    for method, body in (("PATCH", {"failures": False}), ("DELETE", None)):
        for source_id in ("ours", "*"):
            problem(await rig.ask(method, f"/v1/sources/{source_id}", body), 409, "declared-in-file")
    problem(await rig.ask("POST", "/v1/sources", {"source_id": "ours"}), 409, "source-exists")
    assert (await apply(rig)).removed == ("source:*", "source:ours")
    assert source(rig, "theirs").kafka


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/source_id"),
        ({"source_id": 1}, "/source_id"),
        ({"source_id": ""}, "/source_id"),
        ({"source_id": "*"}, "/source_id"),
        ({"source_id": "relay"}, "/source_id"),
        ({"source_id": "a", "callback": "kafkaa"}, "/callback"),
        ({"source_id": "a", "callback": {}}, "/callback/url"),
        ({"source_id": "a", "callback": {"url": URL, "secret": "${HOME}"}}, "/callback/secret"),
        ({"source_id": "a", "callback": {"url": URL, "proxy": "http://p.example:3128"}}, "/callback/proxy"),
        ({"source_id": "a", "inbound": {"kind": "github"}}, "/inbound/secret"),
        ({"source_id": "a", "inbound": {"kind": "github", "secret": "********"}}, "/inbound/secret"),
        ({"source_id": "a", "post_endpoint": URL}, "/post_endpoint"),
    ],
)
async def test_what_is_not_valid_is_told_with_its_place_and_nothing_is_stored(
    rig: Rig, body: dict[str, object], pointer: str
) -> None:
    before = rig.on_the_log
    found = problem(await rig.ask("POST", "/v1/sources", body), 422, "invalid-source")
    assert [error["pointer"] for error in found["errors"]] == [pointer]
    assert rig.on_the_log == before


async def test_the_list_goes_on_behind_its_cursor_whatever_comes_and_goes(rig: Rig) -> None:
    for name in ("b", "d", "f"):
        await create(rig, name, callback={"url": f"{URL}?token={CANARY}"} if name == "b" else "kafka")
    await apply(rig, c={"inbound": {"kind": "github", "secret": "${NOWHERE}"}})
    first = document(await rig.ask("GET", "/v1/sources?limit=2"))
    assert [item["source_id"] for item in first["items"]] == ["b", "c"]
    assert first["items"][0]["callback"] == f"{URL}?token=********"
    assert (first["items"][1]["declared_by"], first["items"][1]["inbound"]) == ("file", "github")
    assert "NOWHERE" in first["items"][1]["refused"]
    await create(rig, "a")
    await rig.ask("DELETE", "/v1/sources/d")
    second = document(await rig.ask("GET", f"/v1/sources?limit=2&cursor={first['cursor']}"))
    assert ([item["source_id"] for item in second["items"]], second["cursor"]) == (["f"], None)
    ours = document(await rig.ask("GET", "/v1/sources?declared_by=file"))
    assert [item["source_id"] for item in ours["items"]] == ["c"]
    problem(await rig.ask("GET", "/v1/sources?declared_by=me"), 400, "invalid-request")


async def command(rig: Rig, *arguments: str) -> str:
    result = await run_command(rig.apis[0], sources, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


async def test_each_route_has_its_command(rig: Rig) -> None:
    made = await command(rig, "create", "a/b", URL, "--set", "callback.timeout=3", "--set", "answers=non_empty")
    assert made.splitlines()[-1] == f"secret of its callback, shown only this once: {MADE}"
    shown = json.loads(await command(rig, "show", "a/b", "-o", "json"))
    assert shown == document(await rig.ask("GET", "/v1/sources/a%2Fb"))
    assert "answers: non_empty" in (await command(rig, "show", "a/b")).splitlines()
    patched = await command(rig, "patch", "a/b", "--unset", "answers", "--if-match", shown["etag"], "-o", "json")
    assert json.loads(patched)["settings"]["answers"] == "all"
    items = document(await rig.ask("GET", "/v1/sources"))["items"]
    assert json.loads(await command(rig, "list", "--declared-by", "api", "-o", "json"))["items"] == items
    assert (await command(rig, "list")).splitlines()[-1].split()[:3] == ["a/b", "api", URL]
    assert "a/b: 0 results are parked" in await command(rig, "delete", "a/b", "--dry-run")
    assert "a/b: removed; 0 results" in await command(rig, "delete", "a/b", "--yes")
    assert source(rig, "a/b") == Source("a/b")


async def test_the_secret_of_a_callback_is_rotated_as_that_of_a_receiver(rig: Rig) -> None:
    told = await create(rig, "shop", callback={"url": URL, "secret": CANARY})
    reply = await rig.ask("POST", "/v1/sources/shop/callback/rotate", {"grace": "1h"})
    turned = document(reply)
    assert (turned["secret"], turned["source_id"], turned["former_until"] is not None) == (MADE, "shop", True)
    assert turned["etag"] != told["etag"]
    found = present(source(rig, "shop").callback)
    assert found.signing.secrets == (MADE,)
    assert [former.secret for former in found.signing.former] == [CANARY]
    assert CANARY not in reply.text
    again = await rig.ask("POST", "/v1/sources/shop/callback/rotate", {"secret": "another-secret-of-theirs"})
    assert document(again)["secret"] is None
    stale = JSON | {"If-Match": f'"{told["etag"]}"'}
    assert (await rig.ask("POST", "/v1/sources/shop/callback/rotate", {}, stale)).status == 412


async def test_what_has_no_callback_has_no_secret_to_rotate(rig: Rig) -> None:
    await create(rig, "plain")
    await create(rig, "unsigned", callback={"url": URL, "signature": "none"})
    assert (await rig.ask("POST", "/v1/sources/plain/callback/rotate", {})).status == 404
    assert (await rig.ask("POST", "/v1/sources/unknown/callback/rotate", {})).status == 404
    assert (await rig.ask("POST", "/v1/sources/unsigned/callback/rotate", {})).status == 422
