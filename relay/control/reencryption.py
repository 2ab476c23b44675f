"""Encrypted secrets that an older key has encrypted, encrypted anew with the newest one, so that the older key can go.
Pure, but for the chance that encryption needs."""

import json
from typing import Final

from relay.config.encryption import KeyRing, key_ids_in, renew_all
from relay.config.problems import Place
from relay.control.records import ORIGIN, SOURCE_PREFIX
from relay.domain.errors import UserError

_SOURCES: Final = "sources"
_RECEIVERS: Final = "receivers"


def is_outdated(value: bytes, ring: KeyRing) -> bool:
    """Whether a record of `receiver_config` has a secret that the newest key has not encrypted."""
    return not key_ids_in(value) <= {ring.newest}


def renewed(key: str, value: bytes, ring: KeyRing) -> bytes:
    """The record of `key` with its secrets encrypted anew; all else, also what a newer version has put there, stays.
    Raises UserError where a secret cannot be opened here, or nobody can read the record."""
    try:
        known = json.loads(value)
        known["entry"] = renew_all(known["entry"], ring, _place(key))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{ORIGIN}: {key}: a record that nobody can read") from None
    return json.dumps(known, sort_keys=True).encode()


def _place(key: str) -> Place:
    if key.startswith(SOURCE_PREFIX):
        return _SOURCES, key.removeprefix(SOURCE_PREFIX)
    return _RECEIVERS, key
