"""Tests that all secrets encrypted with an older key are encrypted with the newest, so that the older one can be
removed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relay.config.encryption import NO_KEYS, KeyRing, key_ids_in
from relay.control.records import EntryRecord, source_key
from relay.control.registry import Registry
from relay.log.port import NewRecord
from tests.integration.api_rig import document, problem
from tests.integration.test_api_registration import Rig, running

OLD, NEW = b"o" * 32, b"n" * 32
PATH = "/v1/secrets/reencrypt"
URL_SECRET = "aB3dE5fG7hJ9kL1mN2"
BODY = {
    "post_endpoint": f"https://ci.example/hooks/{URL_SECRET}?token=t0ken",
    "bearer_token": "bearer-4711",
    "headers": {"x-api-key": "header-4711"},
}


@asynccontextmanager
async def both_keys() -> AsyncIterator[Rig]:
    """Receivers, one with a lane of its own, and a source, encrypted with OLD, where the first key is NEW by now."""
    old = KeyRing([OLD])
    async with running(old) as before:
        for name, lane in (("ca", "shared"), ("cb", "dedicated"), ("cc", "shared")):
            await before.create(name, lane=lane, **BODY)
        secret = old.encrypted("inbound-4711", ("sources", "hooks", "inbound", "secret"))
        source = EntryRecord("api", {"inbound": {"kind": "github", "secret": secret}})
        topic = before.api.topics.receiver_config
        await before.api.log.append([NewRecord(topic, source_key("hooks").encode(), source.encode())])
        records = [(one.key, one.value) for one in before.api.records(topic)]
    async with running(KeyRing([NEW, OLD])) as rig:
        said = [NewRecord(topic, key, value) for key, value in records]
        await rig.api.log.append(
            [*said, NewRecord(topic, b"cd", EntryRecord("file", {"post_endpoint": "https://x/"}).encode())]
        )
        for registry in rig.registries:
            await registry.reach(len(said) + 1)
        yield rig


def _keys_on_the_log(rig: Rig) -> dict[bytes, set[str]]:
    newest = {one.key or b"": one.value or b"" for one in rig.api.records(rig.api.topics.receiver_config)}
    return {key: found for key, value in newest.items() if (found := key_ids_in(value))}


async def _opens_all(rig: Rig, ring: KeyRing) -> None:
    registry = Registry(rig.api.topics, {}, ring=ring)
    task = asyncio.create_task(registry.follow(rig.api.log))
    await registry.ready.wait()
    for name in ("ca", "cb", "cc"):
        receiver = registry.receiver(name)
        assert receiver is not None, registry.refusal(name)
        assert receiver.post.url == BODY["post_endpoint"]
        assert ("authorization", "Bearer bearer-4711") in receiver.post.headers
        assert ("x-api-key", "header-4711") in receiver.post.headers
    inbound = registry.source("hooks").inbound
    assert inbound is not None
    assert inbound.secrets == ("inbound-4711",)
    assert (registry.refused, registry.problems) == (0, {})
    task.cancel()
    await asyncio.wait([task])


async def test_page_by_page_until_the_older_key_can_go() -> None:
    old, new = KeyRing([OLD]).newest, KeyRing([NEW]).newest
    async with both_keys() as rig:
        told = document(await rig.ask("POST", f"{PATH}?dry_run=true"))
        assert told == {
            "key": new,
            "looked_at": 5,
            "outdated": 4,
            "rewritten": 0,
            "unreadable": [],
            "leaving": 0,
            "cursor": None,
        }
        assert all(found == {old} for found in _keys_on_the_log(rig).values())
        pages = [document(await rig.ask("POST", f"{PATH}?limit=2"))]
        while pages[-1]["cursor"]:
            cursor = pages[-1]["cursor"]
            pages.append(document(await rig.ask("POST", f"{PATH}?limit=2&cursor={cursor}", of=len(pages) % 2)))
        assert [(page["looked_at"], page["rewritten"]) for page in pages] == [(2, 2), (2, 1), (1, 1)]
        assert _keys_on_the_log(rig) == {key: {new} for key in (b"ca", b"cb", b"cc", b"source:hooks")}
        await _opens_all(rig, KeyRing([NEW]))
        again = document(await rig.ask("POST", PATH))
        assert (again["outdated"], again["rewritten"]) == (0, 0), "a repetition finds nothing to do"


async def test_what_cannot_be_opened_is_named_and_the_rest_is_done() -> None:
    lost = KeyRing([b"x" * 32])
    async with both_keys() as rig:
        entry: dict[str, object] = {
            "post_endpoint": "https://x/",
            "lane": "shared",
            "secret": lost.encrypted("s", ("receivers", "cx", "secret")),
        }
        topic = rig.api.topics.receiver_config
        (at,) = await rig.api.log.append([NewRecord(topic, b"cx", EntryRecord("api", entry).encode())])
        kept = EntryRecord("api", {"secret": KeyRing([OLD]).encrypted("s", ("receivers", "gone", "secret"))}).encode()
        (at,) = await rig.api.log.append([NewRecord(topic, b"removed:gone", kept)])
        for registry in rig.registries:
            await registry.reach(at.offset + 1)
        told = document(await rig.ask("POST", PATH))
        assert (told["outdated"], told["rewritten"], told["unreadable"], told["leaving"]) == (5, 4, ["cx"], 1)
        newest = {one.key: one.value for one in rig.api.records(topic)}
        assert json.loads(newest[b"cx"] or b"")["entry"]["secret"] == entry["secret"], "left as it was"


async def test_what_it_takes() -> None:
    async with running(NO_KEYS) as rig:
        problem(await rig.ask("POST", PATH), 409, "no-secrets-key")
    async with running() as rig:
        for query in ("limit=0", "limit=x", "dry_run=yes", "cursor=%C3%A9", "cursor=_w", "of=all"):
            problem(await rig.ask("POST", f"{PATH}?{query}"), 400, "invalid-request")


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_change_that_comes_meanwhile_is_not_lost(dry_run: bool) -> None:
    async with both_keys() as rig:
        query = "?dry_run=true" if dry_run else ""
        changed = [rig.ask("PATCH", f"/v1/receivers/{name}", {"timeout": 7}, of=1) for name in ("ca", "cb", "cc")]
        replies = await asyncio.gather(rig.ask("POST", PATH + query), *changed)
        assert [reply.status for reply in replies] == [200] * 4
        assert [rig.receiver(name).post.timeout for name in ("ca", "cb", "cc")] == [7] * 3
