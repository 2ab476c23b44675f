"""Re-encrypts stored secrets with the newest key, so that older keys can be removed. Pure, except for the randomness of
encryption."""

import json
from typing import Final

from relay.config.encryption import KeyRing, key_ids_in, renew_all
from relay.config.problems import Place
from relay.control.records import ORIGIN
from relay.domain.control_key import control_key
from relay.domain.errors import UserError

_SOURCES: Final = "sources"
_RECEIVERS: Final = "receivers"


def is_outdated(value: bytes, ring: KeyRing) -> bool:
    """Whether a record of `receiver_config` has a secret that is encrypted with an older key."""
    return not key_ids_in(value) <= {ring.newest}


def renewed(key: str, value: bytes, ring: KeyRing) -> bytes:
    """The record of `key` with its secrets re-encrypted; everything else, including fields of a newer version, stays.
    Raises UserError if a secret cannot be decrypted here, or the record is unreadable."""
    try:
        known = json.loads(value)
        known["entry"] = renew_all(known["entry"], ring, _place(key))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{ORIGIN}: {key}: an unreadable record") from None
    return json.dumps(known, sort_keys=True).encode()


def _place(key: str) -> Place:
    known = control_key(key)
    return (_SOURCES if known.kind == "source" else _RECEIVERS), known.id
