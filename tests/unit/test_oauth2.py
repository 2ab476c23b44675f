"""Access tokens in memory: one fetch for all that wait, anew before the end, and once after a 401."""

import asyncio
import json
import re

import pytest

from relay.delivery import oauth2 as module
from relay.delivery.oauth2 import Refusal, Tokens
from relay.domain.egress import Egress, OAuth2, Tls
from relay.domain.exchange import Exchange, NoResponse, Request, Response

OAUTH2 = OAuth2("https://idp.example/token", "relay", "hunter2")
EGRESS = Egress(oauth2=OAUTH2)


class Rig:
    """A token endpoint that returns t1, t2 ... or the next of `answers`, when `open` is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[Request] = []
        self.answers: list[Exchange] = []
        self.open = asyncio.Event()
        self.open.set()
        self.tokens = Tokens(self.ask, lambda: self.now, lambda: 0.5)

    async def ask(self, request: Request) -> Exchange:
        self.asked.append(request)
        await self.open.wait()
        if self.answers:
            return self.answers.pop()
        said = {"access_token": f"t{len(self.asked)}", "expires_in": 600}
        return Response(200, {}, json.dumps(said).encode())


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_many_that_wait_cost_one_fetch(rig: Rig) -> None:
    rig.open.clear()
    waiting = [asyncio.ensure_future(rig.tokens.fetched(EGRESS)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # one of them gives up
    rig.open.set()
    assert await asyncio.gather(*waiting[1:]) == ["t1"] * 4
    assert rig.tokens.cached(EGRESS) == "t1"
    assert len(rig.asked) == 1


async def test_it_is_fetched_anew_before_it_ends_while_it_is_still_used(rig: Rig) -> None:
    await rig.tokens.fetched(EGRESS)
    rig.now += 600 - 90 - 1  # 60 s, and half of that for the chance
    assert rig.tokens.cached(EGRESS) == "t1"
    await asyncio.sleep(0)
    assert len(rig.asked) == 1
    rig.now += 1
    assert rig.tokens.cached(EGRESS) == rig.tokens.cached(EGRESS) == "t1"
    await rig.tokens.fetched(EGRESS)
    assert rig.tokens.cached(EGRESS) == "t2"
    assert len(rig.asked) == 2


async def test_that_it_cannot_be_fetched_anew_yet_does_not_matter_before_it_ends(rig: Rig) -> None:
    await rig.tokens.fetched(EGRESS)
    rig.now += 520
    rig.answers.append(NoResponse("refused", "", sent=False))
    assert rig.tokens.cached(EGRESS) == "t1"
    await asyncio.sleep(0)
    assert [rig.tokens.cached(EGRESS) for _ in range(3)] == ["t1"] * 3
    await asyncio.sleep(0)
    assert len(rig.asked) == 2  # and after a failure the endpoint has a rest
    rig.now += 76
    assert rig.tokens.cached(EGRESS) is None
    assert await rig.tokens.fetched(EGRESS) == "t3"


async def test_a_failure_is_told_and_not_repeated_at_once(rig: Rig) -> None:
    rig.answers.append(NoResponse("refused", "nobody there", sent=False))
    for _ in range(3):
        refusal = await rig.tokens.fetched(EGRESS)
        assert isinstance(refusal, Refusal)
        assert re.search(r"token endpoint .*: refused: nobody there", refusal.detail)
    assert len(rig.asked) == 1
    rig.now += 1.0
    assert await rig.tokens.fetched(EGRESS) == "t2"


async def test_a_401_is_worth_one_new_token(rig: Rig) -> None:
    await rig.tokens.fetched(EGRESS)
    rig.now += 60
    assert rig.tokens.refused(EGRESS, "t1")
    assert rig.tokens.cached(EGRESS) is None
    assert rig.tokens.refused(EGRESS, "t1")  # of another request, at the same time
    assert await rig.tokens.fetched(EGRESS) == "t2"
    assert rig.tokens.refused(EGRESS, "t1")  # a late one
    assert not rig.tokens.refused(EGRESS, "t2")  # the receiver means us, not the token
    assert rig.tokens.cached(EGRESS) == "t2"
    assert len(rig.asked) == 2


async def test_each_setting_has_a_token_of_its_own_and_few_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 2)
    settings = [Egress(oauth2=OAuth2("https://idp.example/token", name, "s")) for name in "abc"]
    assert [await rig.tokens.fetched(setting) for setting in settings] == ["t1", "t2", "t3"]
    assert [rig.tokens.cached(setting) for setting in settings] == [None, "t2", "t3"]


async def test_the_token_endpoint_is_reached_like_the_receiver_but_for_its_pins(rig: Rig) -> None:
    await rig.tokens.fetched(Egress(Tls("ca", pinned=(b"1",)), "none", OAUTH2))
    assert rig.asked[0].egress == Egress(Tls("ca"), "none")
