"""Rotates the signing secret of an entry: the former secret also signs for a grace period. Pure."""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from relay.config.encryption import has_encrypted
from relay.config.entry_types import MAX_FORMER
from relay.config.receivers_file import Raw
from relay.control.patch import Fault, Faulty
from relay.domain.ed25519 import PRIVATE, is_private_key
from relay.domain.signing import WHSEC

_FORMER: Final = "former_secrets"


def rotated(entry: Raw, new: str, *, grace_s: float, now: float) -> Raw:
    """`entry`, decrypted, with the secret `new`. It replaces the secrets of its kind, HMAC or Ed25519 (all, if there is
    none of its kind), which also sign for `grace_s`. If it is already there, as in a repeated request, it stays. Raises
    Faulty."""
    present = present_secrets(entry)
    alike = [secret for secret in present if is_private_key(secret) == is_private_key(new)] or present
    replaced = [secret for secret in alike if secret != new]
    former = [known for known in _former(entry) if _is_usable(known) and known["secret"] != new]
    if grace_s > 0:
        until = ceil(now + grace_s)
        former = [*({"secret": each, "until": until} for each in replaced if not has_encrypted(each)), *former]
    if len(former) > MAX_FORMER:
        raise Faulty([Fault("/grace", _too_many(former))])
    kept = [secret for secret in present if secret not in alike]
    return {**_without(entry, _FORMER), "secret": [new, *kept] if kept else new} | ({_FORMER: former} if former else {})


def without_expired(entry: Raw, now: float) -> Raw:
    """`entry` without former secrets that have expired."""
    living = [former for former in _former(entry) if now < former["until"]]
    return {**entry, _FORMER: living} if living else _without(entry, _FORMER)


def present_secrets(entry: Raw) -> list[str]:
    """The current secrets, newest first."""
    secret: Any = entry.get("secret", [])
    return [secret] if isinstance(secret, str) else list(secret)


def former_until(before: Raw, after: Raw) -> float | None:
    """Until when the secrets replaced by a rotation sign, or all former ones if it replaced none; None if none
    signs."""
    replaced = set(present_secrets(before)) - set(present_secrets(after))
    known = [former for former in _former(after) if not replaced or former["secret"] in replaced]
    return max((former["until"] for former in known), default=None)


def as_private_key(secret: str) -> str:
    """The Ed25519 key with the random bytes of a generated HMAC secret; both have 32 bytes."""
    return PRIVATE + secret.removeprefix(WHSEC)


def _former(entry: Raw) -> list[Mapping[str, Any]]:
    known: Any = entry.get(_FORMER, [])
    return list(known)


def _without(entry: Raw, field: str) -> Raw:
    return {name: value for name, value in entry.items() if name != field}


def _is_usable(former: Mapping[str, Any]) -> bool:
    """Whether a former secret can sign. One that cannot be decrypted must not prevent a rotation."""
    return not has_encrypted(former["secret"])


def _too_many(former: list[Any]) -> str:
    return (
        f"{len(former)} former secrets would still sign; at most {MAX_FORMER} may. Wait until one expires, or use "
        "grace 0, which ends the current secret at once"
    )
