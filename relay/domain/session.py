"""Session and portal tokens: signed substitutes for an API key. Pure.

A *session* (`rs_...`) has the permissions of the key it was created with. A *portal* token (`rp_...`) has permissions
of its own: an owner, and all or some of the owner's receivers. Both name the key and the secret that created them, and
are valid no longer than these. Tokens are self-contained and signed, so processes store nothing about them; only tokens
that were ended early are on `receiver_config`.

A token is `<mark>_` and base64url of one version byte, 32 bytes of HMAC-SHA-256, and JSON.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from relay.domain.errors import RelayError
from relay.domain.identity import base64url, token_bytes

Kind = Literal["session", "portal"]

MARKS: Final[dict[str, Kind]] = {"rs": "session", "rp": "portal"}
LONGEST_S: Final = 7 * 86_400.0
MOST_RECEIVERS: Final = 20
"""Receivers that a portal link may name: a cookie has at most 4,096 bytes."""
_MARK_OF: Final[dict[Kind, str]] = {kind: mark for mark, kind in MARKS.items()}
_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 32
_MAX_LENGTH: Final = 4_096
_PROOF_CHARACTERS: Final = 16


class SessionInvalid(RelayError):
    """The token was not issued with any of these secrets, or was changed."""


class SessionOver(RelayError):
    """The token is genuine, but its expiry has passed."""


@dataclass(frozen=True, slots=True)
class SessionIssuer:
    """The key that created the session. `key`: the id of a created key, `api` for the key in the settings, `own` for
    the process's own; empty if no key existed. `proof`: identifies the key's secret."""

    key: str
    proof: str = ""


NOBODY: Final = SessionIssuer("")


@dataclass(frozen=True, slots=True)
class Session:
    """`expires`: Unix seconds; it is rejected from then on. `owner`: of a portal; `receivers`: limits it to these
    receivers of the owner; None for all."""

    kind: Kind
    id: str
    maker: SessionIssuer
    expires: int
    owner: str | None = None
    receivers: frozenset[str] | None = None


class _Claims(msgspec.Struct, omit_defaults=True):
    """A session in its token."""

    id: str
    key: str
    proof: str
    expires: int
    owner: str | None = None
    receivers: list[str] | None = None


def kind_of(token: str) -> Kind | None:
    """The kind of a token; None if it does not have the form of one."""
    return MARKS.get(token.partition("_")[0])


def issue(secret: bytes, session: Session) -> str:
    """The session's token, of letters, digits, `-` and `_`."""
    maker, only = session.maker, None if session.receivers is None else sorted(session.receivers)
    text = msgspec.json.encode(_Claims(session.id, maker.key, maker.proof, session.expires, session.owner, only))
    raw = _VERSION + _mac(secret, session.kind, text) + text
    return f"{_MARK_OF[session.kind]}_{base64url(raw)}"


def read(secrets: Sequence[bytes], token: str, now: float) -> Session:
    """The session of a token that was issued with any of `secrets`. `now`: Unix seconds.

    Raises SessionInvalid or SessionOver. Compares in constant time.
    """
    mark, _, body = token.partition("_")
    kind = MARKS.get(mark)
    raw = token_bytes(body, _MAX_LENGTH)
    if raw is None:
        raise SessionInvalid("this token is damaged")
    given, text = raw[1 : 1 + _MAC_BYTES], raw[1 + _MAC_BYTES :]
    if kind is None or raw[:1] != _VERSION:
        raise SessionInvalid("this token is of an unknown kind")
    proofs = [hmac.compare_digest(given, _mac(secret, kind, text)) for secret in secrets]
    if not any(proofs):
        raise SessionInvalid("this token was not issued by this relay")
    known = msgspec.json.decode(text, type=_Claims)
    if now >= known.expires:
        raise SessionOver("this token has expired")
    only = None if known.receivers is None else frozenset(known.receivers)
    return Session(kind, known.id, SessionIssuer(known.key, known.proof), known.expires, known.owner, only)


def proof_of(secret: bytes, digest: bytes) -> str:
    """Identifies a key of the settings, keyed with `secret`, so that only its holders can test guesses offline."""
    return hmac.digest(secret, b"relay session key 1\0" + digest, "sha256").hex()[:_PROOF_CHARACTERS]


def proof_of_digest(digest: str) -> str:
    """Identifies a secret of a created key. `digest`: of its text in hex; the text has 256 random bits."""
    return digest[:_PROOF_CHARACTERS]


def derived_secret(secret: bytes, label: bytes) -> bytes:
    """32 bytes for one purpose, derived from a secret for another (HKDF with SHA-256, RFC 5869)."""
    pseudorandom = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(pseudorandom, label + b"\x01", "sha256")


# sessions that were ended early


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """`expires`: when the session would have expired; the record is not needed afterwards. `key`: its creator's."""

    expires: int
    key: str = ""
    """Empty in records of older releases."""


def _mac(secret: bytes, kind: Kind, text: bytes) -> bytes:
    # the prefix makes signatures for other purposes with this secret invalid here
    return hmac.digest(secret, b"relay %s token 1\0" % kind.encode() + text, "sha256")
