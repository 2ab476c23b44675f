"""Secrets at rest: a value encrypted for one place can be decrypted there, with any of the keys, and nowhere else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.encryption import NO_KEYS, CannotOpen, KeyRing, key_ids_in, open_all, open_some, renew_all, secrets_of
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import check_entry, resolve
from relay.config.redacted_entry import effective
from relay.config.references import check_references
from relay.control.shared_index import lacks
from relay.domain.errors import UserError

OLD, NEW = b"o" * 32, b"n" * 32
PLACE = ("receivers", "ci", "secret")
CANARY = "canary-4711-of-nobody"


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_what_is_encrypted_can_be_opened_and_is_not_in_it(text: str) -> None:
    ring = KeyRing([OLD])
    sealed = ring.encrypted(text, PLACE)
    assert ring.opened(sealed, PLACE) == text
    assert sealed != ring.encrypted(text, PLACE)  # never the same nonce
    check_references(sealed)


def test_the_first_key_encrypts_and_each_opens() -> None:
    sealed = KeyRing([OLD]).encrypted(CANARY, PLACE)
    assert KeyRing([NEW, OLD]).opened(sealed, PLACE) == CANARY
    with pytest.raises(CannotOpen, match="which RELAY_SECRETS_KEY does not have"):
        KeyRing([NEW]).opened(sealed, PLACE)
    newer = KeyRing([NEW, OLD]).encrypted(CANARY, PLACE)
    assert KeyRing([NEW]).opened(newer, PLACE) == CANARY


@pytest.mark.parametrize(
    "place", [("receivers", "cd", "secret"), ("receivers", "ci", "bearer_token"), ("sources", "ci", "secret")]
)
def test_what_is_moved_elsewhere_cannot_be_opened(place: tuple[str, ...]) -> None:
    ring = KeyRing([OLD])
    with pytest.raises(CannotOpen, match="for another place"):
        ring.opened(ring.encrypted(CANARY, PLACE), place)


def test_a_byte_that_is_changed_is_noticed() -> None:
    ring = KeyRing([OLD])
    sealed = ring.encrypted(CANARY, PLACE)
    with pytest.raises(CannotOpen):
        ring.opened(sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:], PLACE)
    with pytest.raises(CannotOpen):
        ring.opened(sealed[:20] + "}", PLACE)


def test_secrets_may_move_within_their_list() -> None:
    ring = KeyRing([OLD])
    sealed = ring.encrypted(CANARY, PLACE)
    raw = {"secret": [ring.encrypted("first", PLACE), sealed]}
    assert open_all(raw, ring, origin="", place=("receivers", "ci")) == {"secret": ["first", CANARY]}
    assert sorted(secrets_of(raw, ring, ("receivers", "ci"))) == [CANARY, "first"]


def test_an_entry_is_resolved_with_its_secrets_and_each_is_to_be_masked() -> None:
    ring = KeyRing([OLD])
    raw = {
        "post_endpoint": "https://ci.example/x?token=" + ring.encrypted("t-4711", ("receivers", "ci", "post_endpoint")),
        "secret": [ring.encrypted(CANARY, PLACE)],
        "headers": {"x-key": ring.encrypted("h-4711", ("receivers", "ci", "headers", "x-key"))},
    }
    entry = check_entry(ReceiverEntry, raw, "receiver_config", ("receivers", "ci"))
    receiver = resolve("ci", entry, {}, "receiver_config", ring)
    assert (receiver.post.url, receiver.post.headers) == ("https://ci.example/x?token=t-4711", (("x-key", "h-4711"),))
    assert receiver.post.signing.secrets == (CANARY,)
    assert {CANARY, "t-4711", "h-4711"} <= set(receiver.post.secrets)
    assert "enc:" not in str(effective(entry))
    with pytest.raises(UserError) as caught:
        resolve("ci", entry, {}, "receiver_config", NO_KEYS)
    assert "receiver_config: receivers.ci.secret[0]: encrypted with the key" in str(caught.value)


def test_what_cannot_be_opened_stays_as_it_is_where_that_is_wanted() -> None:
    sealed = KeyRing([OLD]).encrypted(CANARY, PLACE)
    assert open_some({"secret": sealed}, NO_KEYS, ("receivers", "ci")) == {"secret": sealed}


def test_a_record_lacks_the_key_of_its_secrets() -> None:
    value = f'{{"secret": "{KeyRing([OLD]).encrypted(CANARY, PLACE)}"}}'.encode()
    assert lacks(value, NO_KEYS.beginnings)
    assert lacks(value, KeyRing([NEW]).beginnings)
    assert not lacks(value, KeyRing([NEW, OLD]).beginnings)


@pytest.mark.parametrize("text", ["${enc:}", "${enc:12345678}", "${enc:12345678:a b}", "${enc:x:y}"])
def test_what_only_looks_encrypted_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match="does not name an environment variable"):
        check_references(text)


def test_what_older_keys_encrypted_is_encrypted_anew_and_nothing_else() -> None:
    old, ring = KeyRing([OLD]), KeyRing([NEW, OLD])
    place = ("receivers", "ci")
    raw = {
        "secret": [old.encrypted("s-1", (*place, "secret")), ring.encrypted("s-2", (*place, "secret")), "${VARIABLE}"],
        "post_endpoint": f"https://u/{old.encrypted('part', (*place, 'post_endpoint'))}?x=1",
    }
    found = renew_all(raw, ring, place)
    assert isinstance(found, dict)
    assert key_ids_in(json.dumps(found).encode()) == {ring.newest}
    assert found["secret"][1:] == raw["secret"][1:]
    assert open_all(found, KeyRing([NEW]), origin="", place=place) == {
        "secret": ["s-1", "s-2", "${VARIABLE}"],
        "post_endpoint": "https://u/part?x=1",
    }
    with pytest.raises(CannotOpen):
        renew_all(raw, KeyRing([NEW]), place)
