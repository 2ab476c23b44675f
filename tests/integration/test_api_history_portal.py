"""Tests of a portal link for some of an owner's receivers: it shows nothing of the history of the others."""

import json

from tests.contract.history_facts import attempt, put
from tests.integration.api_rig import document
from tests.integration.history_world import arrived, life_of, world
from tests.integration.test_api_keys import ADMIN, JSON, SETTING, bearer
from tests.integration.test_api_sessions import portal


async def test_a_link_for_some_receivers_shows_their_history_alone() -> None:
    async with world() as at:
        rig = at.rig
        made = {"name": "other", "post_endpoint": "https://other.example/", "owner": "alice", "signature": "none"}
        assert (await rig.request("POST", "/v1/receivers", json.dumps(made).encode(), JSON | ADMIN)).status == 201
        await put(
            at.history,
            arrived(rig, 5, source="github", receivers=("deploy", "other")),
            attempt(
                "m-5", source="github", offset=20, at=20, receiver="deploy", status=500, life=life_of(rig, "deploy")
            ),
            attempt("m-5", source="github", offset=21, at=21, receiver="other", life=life_of(rig, "other")),
        )
        headers = bearer(await portal(rig, SETTING, owner="alice", receivers=["other"]))

        async def shown(query: str) -> dict[str, list[str]]:
            page = document(await rig.request("GET", f"/v1/messages?{query}", b"", headers))
            return {item["message_id"]: [each["receiver"] for each in item["deliveries"]] for item in page["items"]}

        for query in ("", "owner=alice"):
            assert await shown(query) == {"m-5": ["other"]}
        assert await shown("status=failed") == {}
        stats = document(await rig.request("GET", "/v1/stats", b"", headers))
        assert [each["receiver"] for each in stats["series"]] == ["other"]
        target = "/v1/sources/github/messages/m-5/attempts"
        items = document(await rig.request("GET", target, b"", headers))["items"]
        assert [item["receiver"] for item in items] == ["other"]
        for target in ("/v1/receivers/deploy/attempts", "/v1/sources/github/messages/m-2/attempts"):
            assert (await rig.request("GET", target, b"", headers)).status == 403
