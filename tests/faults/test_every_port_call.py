"""The n-th call to any port fails and takes the process with it, for every n; a restart finds nothing lost."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from jwcrypto.jwk import JWK

from relay.domain.answer_token import read_for_payload
from relay.domain.http_message import verify_message
from relay.domain.identity import DeliveryId
from relay.domain.jwe import decrypt, key_text
from relay.domain.receiver import Encryption, Receiver, SigningPolicy
from relay.state.replies import answered
from relay.state.rows import Stage, delivery_row
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import World, message, receiver

PLAIN = (
    receiver("answers", "/answer", status=True),
    receiver("later", "/later", status=True),
    receiver("fails", "/fail", max_attempts=2),
)


def _with_options() -> tuple[Receiver, ...]:
    """The same, with each other form of the request."""
    answers, later, fails = PLAIN
    signed = replace(fails.post, signing=SigningPolicy(("standard", "http-message"), ("secret",)))
    return (
        replace(answers, payload="thin"),
        replace(later, payload="metadata", respond_async=5.0),
        replace(fails, post=signed),
    )


KEY = JWK.generate(kty="EC", crv="P-256")
ENCRYPTION = Encryption((key_text(KEY.export_public(as_dict=True)),))
OPTIONS = {
    "plain": PLAIN,
    "options": _with_options(),
    "encrypted": tuple(replace(each, encrypt=ENCRYPTION) for each in PLAIN),
}


async def _world(receivers: Sequence[Receiver] = PLAIN) -> World:
    world = await World(receivers).create()
    await world.send(
        message(1, "a", "answers"),
        message(2, "a", "answers", "later"),
        message(3, "b", "later"),
        message(4, "b", "fails"),
    )
    return world


EXPECTED = {
    ("a-1", "answers"): {"answered"},
    ("a-2", "answers"): {"answered"},
    ("a-2", "later"): {"answered"},
    ("b-3", "later"): {"answered"},
    ("b-4", "fails"): {"failed"},
}


def test_without_a_fault_everything_comes_round_once() -> None:
    async def story() -> None:
        world = await _world()
        await world.run(Fuse(), 120)
        assert world.outside.results() == EXPECTED
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"]
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"]
        assert len([at for at, _, _ in world.outside.posts if at == "/callback"]) == 5

    run_virtually(story())


def _calls(receivers: Sequence[Receiver]) -> int:
    async def story() -> int:
        world, fuse = await _world(receivers), Fuse()
        await world.run(fuse, 40)
        return fuse.calls

    return run_virtually(story())


def _check_encrypted(world: World) -> None:
    """No POST, and no dead letter, had a payload that others can read."""
    posts = [body for at, _, body in world.outside.posts if at != "/callback"]
    letters = [record.value or b"" for record in world.broker.records(world.topics.failed_messages)]
    assert posts
    assert letters
    for body in (*posts, *letters):
        assert "n" in json.loads(decrypt([KEY.export_private()], body)[0])


def _check_forms(world: World) -> None:
    """Each POST, also the first one after a restart, had the form of its receiver."""
    for at, headers, body in world.outside.posts:
        message_id, source_id = headers.get("ce-id", ""), headers.get("ce-source", "")
        match at:
            case "/answer":
                token = json.loads(body)["payload_url"].rpartition("/")[2]
                delivery = DeliveryId("answers", source_id, message_id)
                assert read_for_payload((b"secret",), token, 0) == (delivery, "")
                assert "n" not in json.loads(body)
            case "/later":
                assert json.loads(body).keys() == {"id", "source", "type", "time", "webhook_id"}
                assert headers["prefer"] == "respond-async, wait=5"
            case "/fail":
                now = float(headers["webhook-timestamp"])
                url = "http://fails/fail"
                assert verify_message(["secret"], method="POST", url=url, headers=headers, body=body, now=now)


@pytest.mark.timeout(600)  # a hundred and more stories each, which take minutes on a busy machine
@pytest.mark.parametrize("after", [False, True], ids=["call_fails", "reply_is_lost"])
@pytest.mark.parametrize("options", OPTIONS)
def test_no_crash_at_any_call_loses_a_message(options: str, after: bool) -> None:
    async def story(blow_at: int) -> None:
        world = await _world(OPTIONS[options])
        crashing = Fuse(blow_at, after=after)
        await world.run(crashing, 40)
        assert crashing.blown or after, f"call {blow_at} never came"  # a call that fails anyway has no reply to lose
        await world.run(Fuse(), 90, until=lambda: world.outside.results() == EXPECTED)
        place = f"call {blow_at}, {crashing.names[-1]}"
        assert world.outside.results() == EXPECTED, place
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"], place
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"], place
        if options == "options":
            _check_forms(world)
        if options == "encrypted":
            _check_encrypted(world)

    for blow_at in range(1, _calls(OPTIONS[options]) + 1):
        run_virtually(story(blow_at))


@CRASHES
def test_no_crash_at_any_call_leaves_a_delivery_that_cannot_be_routed_unfinished(late: bool, strikes: Strikes) -> None:
    """To a receiver that there is not, and to one whose topic does not take the message."""
    ends = {("a-1", "answers"): {"answered"}, ("a-1", "later"): {"failed"}, ("a-1", "unknown"): {"failed"}}

    async def story(fuse: Fuse) -> None:
        world = await World(PLAIN).create()
        world.broker.limits = {world.topics.to_receiver("later"): 10}
        await world.send(message(1, "a", "answers", "later", "unknown"))
        await world.run(fuse, 20)
        await world.run(Fuse(), 60, until=lambda: world.outside.results() == ends)
        place = fuse.place
        assert world.outside.results() == ends, place
        rows = [delivery_row(DeliveryId(name, "a", "a-1")) for name in ("later", "unknown")]
        assert [row.stage for row in await answered(world.state.peek(rows))] == [Stage.FAILED] * 2, place

    crash_at_each(story, strikes, late=late)
