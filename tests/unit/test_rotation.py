"""A new signing secret takes the place of the former one, which signs along until its time is over."""

import base64

import pytest
from pydantic import ValidationError

from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import Raw, resolve
from relay.control.patch import Faulty, as_private_key, former_until, rotated, without_expired
from relay.domain.receiver import SigningPolicy
from relay.domain.signing import check_secret, generate_secret, is_private_key, public_key, sign, verify_standard

NOW = 1_700_000_000
BODY = b"{}"
URL = "https://ci.example/hooks"
PRIVATE = "whsk_" + base64.b64encode(b"p" * 32).decode()
LOST = "${enc:0a1b2c3d:AAAA}"


def made(entry: Raw, new: str = "new", grace_s: float = 60, now: float = NOW) -> Raw:
    return rotated(entry, new, grace_s=grace_s, now=now)


def former(*secrets: str, until: float = NOW + 60) -> list[dict[str, object]]:
    return [{"secret": secret, "until": until} for secret in secrets]


@pytest.mark.parametrize(
    ("entry", "secret", "kept"),
    [
        ({}, "new", []),
        ({"secret": "a"}, "new", former("a")),
        ({"secret": ["a", "b"]}, "new", former("a", "b")),
        ({"secret": ["a", PRIVATE]}, ["new", PRIVATE], former("a")),
        ({"secret": PRIVATE}, "new", former(PRIVATE)),
        (
            {"secret": "a", "former_secrets": former("b", until=NOW + 9)},
            "new",
            former("a") + former("b", until=NOW + 9),
        ),
        ({"secret": "a", "former_secrets": former("new", "b")}, "new", former("a", "b")),
        ({"secret": LOST, "former_secrets": former(LOST, "b")}, "new", former("b")),
    ],
)
def test_the_new_secret_takes_the_place_of_those_of_its_kind(entry: Raw, secret: object, kept: list[object]) -> None:
    changed = made({"post_endpoint": URL, **entry})
    assert (changed["secret"], changed.get("former_secrets", [])) == (secret, kept)
    assert changed["post_endpoint"] == URL


def test_without_grace_the_former_one_ends_at_once() -> None:
    changed = made({"secret": "a"}, grace_s=0)
    assert changed == {"secret": "new"}
    assert former_until({"secret": "a"}, changed) is None
    assert former_until({"secret": "a"}, made({"secret": "a"})) == NOW + 60


def test_a_repeated_rotation_to_the_same_secret_changes_nothing() -> None:
    changed = made({"secret": ["a", "b"]})
    assert made(changed, now=NOW + 9) == changed
    assert former_until(changed, changed) == NOW + 60
    assert made({"secret": ["a", "new"]}) == {"secret": "new", "former_secrets": former("a")}


def test_three_former_secrets_sign_along_at_most_and_none_is_dropped_before_its_time() -> None:
    entry: Raw = {"secret": "0"}
    for number in range(1, 4):
        entry = made(entry, str(number))
    assert entry["former_secrets"] == former("2", "1", "0")
    with pytest.raises(Faulty) as caught:
        made(entry, "4")
    assert [fault.pointer for fault in caught.value.faults] == ["/grace"]
    assert made(entry, "4", grace_s=0)["former_secrets"] == former("2", "1", "0")
    assert "former_secrets" not in without_expired(entry, NOW + 60)
    assert without_expired(entry, NOW + 59) == entry


def test_a_private_key_is_made_of_the_bytes_of_a_secret() -> None:
    key = as_private_key(generate_secret(lambda count: b"k" * count))
    check_secret(key)
    assert is_private_key(key)


def policy_of(**fields: object) -> SigningPolicy:
    entry = ReceiverEntry.model_validate({"post_endpoint": URL, "secret": "new", **fields})
    return resolve("ci", entry, {}).post.signing


def signed(policy: SigningPolicy, at: int) -> dict[str, str]:
    return dict(sign(policy, webhook_id="msg_1", timestamp=at, body=BODY))


@pytest.mark.parametrize(("at", "verified"), [(NOW, True), (NOW + 59, True), (NOW + 60, False)])
def test_the_former_secret_signs_until_its_time_is_over_and_the_new_one_always(at: int, verified: bool) -> None:
    headers = signed(policy_of(former_secrets=former("a", PRIVATE)), at)
    assert verify_standard(["new"], headers, BODY, at)
    assert verify_standard(["a"], headers, BODY, at) is verified
    assert verify_standard([public_key(PRIVATE)], headers, BODY, at) is verified
    assert headers["webhook-signature"].count(" ") == (2 if verified else 0)


def test_a_style_with_room_for_one_signature_has_that_of_the_new_secret() -> None:
    styles = ("github", "stripe")
    alone = signed(policy_of(signature=styles), NOW)
    both = signed(policy_of(signature=styles, former_secrets=former("a")), NOW)
    assert alone["x-hub-signature-256"] == both["x-hub-signature-256"]
    assert both["stripe-signature"].startswith(alone["stripe-signature"] + ",v1=")


@pytest.mark.parametrize("until", [NOW + 60, "2023-11-14T22:14:20Z", "2023-11-14T23:14:20+01:00"])
def test_until_is_a_moment(until: object) -> None:
    [known] = policy_of(former_secrets=[{"secret": "a", "until": until}]).former
    assert known.until == NOW + 60


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"former_secrets": [{"secret": "a", "until": "2023-11-14T22:14:20"}]}, "not a timestamp"),
        ({"former_secrets": [{"secret": "a", "until": -1}]}, "not a timestamp"),
        ({"former_secrets": [{"secret": "a"}]}, "until"),
        ({"former_secrets": former("a", "b", "c", "d")}, "at most 3"),
        ({"former_secrets": former("a"), "secret": []}, "sign only beside a current one"),
    ],
)
def test_former_secrets_that_cannot_be(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        policy_of(**fields)
