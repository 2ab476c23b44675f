"""Signed tokens in place of a key: a session, and a link into the portal. Pure.

A *session* (`rs_...`) may what the key may that it was made with. A *portal* token (`rp_...`) has rights of its own: an
owner, and of their receivers all or some. Both name the key, and the secret of it, that they were made with, and are
good no longer than that. The token carries all of it, signed, so no process has to remember any; only those that were
ended before their time are on `receiver_config`.

A token is `<mark>_` and base64url of one byte of version, 32 bytes of HMAC-SHA-256, and JSON.
"""

import base64
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from relay.domain.errors import InvalidRecord, RelayError

Kind = Literal["session", "portal"]

MARKS: Final[dict[str, Kind]] = {"rs": "session", "rp": "portal"}
LONGEST_S: Final = 7 * 86_400.0
MOST_RECEIVERS: Final = 20
"""That a link into the portal may name: a cookie has 4,096 bytes."""
ENDED_PREFIX: Final = b"session-end:"
_MARK_OF: Final[dict[Kind, str]] = {kind: mark for mark, kind in MARKS.items()}
_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 32
_MAX_LENGTH: Final = 4_096
_PROOF_CHARACTERS: Final = 16


class SessionInvalid(RelayError):
    """The token was not issued with any of these secrets, or was changed."""


class SessionOver(RelayError):
    """It was good until its expiry, which has passed."""


@dataclass(frozen=True, slots=True)
class SessionIssuer:
    """With what it was made. `key`: the id of a key that was made, `api` for the one of the settings, `own` for the
    one of the process; empty: with none, while there was none. `proof`: which of its secrets."""

    key: str
    proof: str = ""


NOBODY: Final = SessionIssuer("")


@dataclass(frozen=True, slots=True)
class Session:
    """`expires`: Unix seconds from which on it is refused. `owner`: of a portal; `receivers`: of theirs these alone,
    None: all."""

    kind: Kind
    id: str
    maker: SessionIssuer
    expires: int
    owner: str | None = None
    receivers: frozenset[str] | None = None


def kind_of(token: str) -> Kind | None:
    """None: it has not the form of one."""
    return MARKS.get(token.partition("_")[0])


def issue(secret: bytes, session: Session) -> str:
    """Its token, of letters, digits, `-` and `_`."""
    known: dict[str, Any] = {
        "id": session.id,
        "key": session.maker.key,
        "proof": session.maker.proof,
        "expires": session.expires,
    }
    if session.owner is not None:
        known["owner"] = session.owner
    if session.receivers is not None:
        known["receivers"] = sorted(session.receivers)
    text = json.dumps(known, separators=(",", ":"), ensure_ascii=False).encode()
    raw = _VERSION + _mac(secret, session.kind, text) + text
    return f"{_MARK_OF[session.kind]}_{base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


def read(secrets: Sequence[bytes], token: str, now: float) -> Session:
    """The session of a token that was issued with any of `secrets`. `now`: Unix seconds.

    Raises SessionInvalid or SessionOver; compares in constant time.
    """
    mark, _, body = token.partition("_")
    kind = MARKS.get(mark)
    raw = _decoded(body)
    given, text = raw[1 : 1 + _MAC_BYTES], raw[1 + _MAC_BYTES :]
    if kind is None or raw[:1] != _VERSION:
        raise SessionInvalid("this token is of no kind that is known here")
    proofs = [hmac.compare_digest(given, _mac(secret, kind, text)) for secret in secrets]
    if not any(proofs):
        raise SessionInvalid("this token is not one of ours")
    known = json.loads(text)
    only = known.get("receivers")
    session = Session(
        kind,
        known["id"],
        SessionIssuer(known["key"], known["proof"]),
        known["expires"],
        known.get("owner"),
        None if only is None else frozenset(only),
    )
    if now >= session.expires:
        raise SessionOver("the time of this token is over")
    return session


def proof_of(secret: bytes, digest: bytes) -> str:
    """Which key of the settings it was, for who has `secret`: nobody else can try keys on it at home."""
    return hmac.digest(secret, b"relay session key 1\0" + digest, "sha256").hex()[:_PROOF_CHARACTERS]


def proof_of_digest(digest: str) -> str:
    """Which secret of a key that was made it was. `digest`: of its text, hex; that has 256 random bits."""
    return digest[:_PROOF_CHARACTERS]


def derived_secret(secret: bytes, label: bytes) -> bytes:
    """32 bytes for one use, from a secret that has another (HKDF with SHA-256, RFC 5869)."""
    pseudorandom = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(pseudorandom, label + b"\x01", "sha256")


# those that were ended before their time


def ended_record_key(id: str) -> bytes:
    return ENDED_PREFIX + id.encode()


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """`expires`: when it would have been over by itself; from then on nobody has to know. `key`: its maker's."""

    expires: int
    key: str


def encode_end(end: SessionEnd) -> bytes:
    return json.dumps({"expires": end.expires, "key": end.key}).encode()


def decode_end(value: bytes) -> SessionEnd:
    """Raises InvalidRecord unless `value` is what `encode_end` makes, or made when it named no key."""
    try:
        known = json.loads(value)
        return SessionEnd(int(known["expires"]), str(known.get("key", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidRecord("invalid", "an end of a session that is none of ours") from error


def _mac(secret: bytes, kind: Kind, text: bytes) -> bytes:
    # a signature made for anything else with this secret is none here
    return hmac.digest(secret, b"relay %s token 1\0" % kind.encode() + text, "sha256")


def _decoded(body: str) -> bytes:
    if len(body) <= _MAX_LENGTH and body.isascii():
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        except ValueError:
            raise SessionInvalid("this token is damaged") from None
        # the decoder skips foreign characters and ignores spare bits; one session has one token
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == body:
            return raw
    raise SessionInvalid("this token is damaged")
