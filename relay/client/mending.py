"""Fixes an incident by API calls: fix, test, replay of its dead letters. Used by the CLI and the pages."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from relay.client.api import RelayApi
from relay.client.call import Asyncio
from relay.client.errors import ApiError
from relay.schema.attempts import TrialView
from relay.schema.incidents import IncidentDetail, IncidentView
from relay.schema.replays import JobView

TESTED: Final = frozenset({"secret", "url", "resume", "callback", "discard"})
"""Kinds of actions for which a ping shows whether the receiver, or the callback, accepts requests."""
_RESUMED: Final = frozenset({"failing", "gone", "disabled"})
"""Kinds of incidents of an endpoint that would get its messages, although it may fail as before."""

_TOO_MANY: Final = 429
_BETWEEN_S: Final = 1.5


class Fix(NamedTuple):
    """What to change. `secret`: that the receiver, or the callback, checks signatures with. `bearer_token`: likewise,
    of a receiver. `url`: of the endpoint. None: it stays. `anew`: credentials that another origin needs again, as a
    merge patch of the receiver."""

    secret: str | None = None
    bearer_token: str | None = None
    url: str | None = None
    anew: Mapping[str, object] = MappingProxyType({})


class Tested(NamedTuple):
    """The result of a test. `detail`: the status, or why there was no response; `body`: of the response."""

    passed: bool
    detail: str
    body: str = ""


def is_tested_first(incident: IncidentView) -> bool:
    """Whether a test shows if its action is a fix, before it changes anything: the discard of a message mends no
    receiver that fails with each, and one that is resumed too early fails with more."""
    return incident["action"]["kind"] == "discard" or incident["kind"] in _RESUMED


async def apply_fix(api: RelayApi[Asyncio], incident: IncidentDetail, fix: Fix) -> list[str]:
    """Carries out its action, and resumes the endpoint. Messages that have failed keep the time of their next attempt.
    Returns the changes in words. Raises ApiError."""
    name, kind = incident["party"]["name"], incident["action"]["kind"]
    match kind:
        case "verify":
            tried = await api.receivers.verify(name)
            return ["verified" if tried["proved"] else f"not verified: {tried['detail']}"]
        case "discard":
            message = incident["evidence"]["message"]
            if message is not None:
                await api.messages.discard(message["source_id"], message["message_id"], name)
            return [f"discarded {'' if message is None else message['message_id']}".strip()]
    if incident["kind"] == "invalid_messages":
        return []  # nothing is wrong with the callback of their source
    if incident["party"]["type"] == "source":
        changes = await _change_callback(api, name, fix) if incident["kind"] == "callback" else []
        await api.sources.resume(name)
        return [*changes, "resumed the callback"]
    if incident["party"]["type"] != "receiver":
        return []
    changes = await _change_receiver(api, name, fix)
    await api.receivers.resume(name)
    return [*changes, f"resumed {name}"]


async def _change_receiver(api: RelayApi[Asyncio], name: str, fix: Fix) -> list[str]:
    done = []
    changes = {"post_endpoint": fix.url, "bearer_token": fix.bearer_token, **fix.anew}
    if patch := {field: value for field, value in changes.items() if value}:
        await api.receivers.update(name, patch)
        done += [f"changed {field}" for field in patch]
    if fix.secret:
        await api.receivers.rotate(name, secret=fix.secret, grace="0s")
        done.append("changed the secret")
    return done


async def _change_callback(api: RelayApi[Asyncio], source: str, fix: Fix) -> list[str]:
    changes = {"url": fix.url, "secret": fix.secret}
    patch = {field: value for field, value in changes.items() if value}
    if patch:
        await api.sources.update(source, {"callback": patch})
    return [f"changed the callback's {field}" for field in patch]


async def test_endpoint(api: RelayApi[Asyncio], incident: IncidentDetail) -> Tested | None:
    """Sends the receiver, or the callback, a signed ping. None if a ping proves nothing about the incident. Raises
    ApiError."""
    party, name = incident["party"]["type"], incident["party"]["name"]
    if party == "relay" or incident["action"]["kind"] not in TESTED:
        return None
    test = (api.sources if party == "source" else api.receivers).test
    try:
        return judged(await test(name))
    except ApiError as error:
        if error.status != _TOO_MANY:
            raise
    await asyncio.sleep(_BETWEEN_S)  # an endpoint is tested once a second
    return judged(await test(name))


def judged(trial: TrialView) -> Tested:
    response, failure = trial["response"], trial["failure"]
    if response is not None:
        status = response["status"]
        return Tested(status < 300, str(status), response["body"] or "")
    return Tested(False, "no response" if failure is None else f"{failure['kind']}: {failure['detail']}".strip(": "))


async def replay_letters(api: RelayApi[Asyncio], incident: IncidentDetail) -> JobView | None:
    """Begins the replay of its dead letters; None if there are none. Raises ApiError."""
    if incident["replay"] is None:
        return None
    return await api.replays.create(everything=False, **incident["replay"])


async def close_if_over(api: RelayApi[Asyncio], id: str) -> IncidentDetail | None:
    """Resolves the incident if its cause is not observed any more. Returns it as it is then; None if it is gone."""
    try:
        incident = await api.incidents.get(id)
        if incident["state"] != "resolved" and incident["cleared_at"] is not None:
            return await api.incidents.resolve(id)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return incident
