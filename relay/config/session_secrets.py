"""Secrets that sign sessions and portal links."""

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from relay.config.settings import Settings
from relay.domain.session import derived_secret

_BYTES: Final = 32
_NAME: Final = "session_secret"
_LABEL: Final = b"relay sessions 1"


def session_secrets(settings: Settings, answer_secrets: Sequence[bytes], launch: bytes) -> tuple[bytes, ...]:
    """The keys that sign and verify tokens, the signing one first. `launch`: used if no secret is set; tokens are then
    valid only on this machine, until the relay restarts."""
    given = settings.session_secret
    if given:
        return tuple(derived_secret(each.get_secret_value().encode(), _LABEL) for each in given)
    return tuple(derived_secret(each, _LABEL) for each in answer_secrets) or (launch,)


def keep_launch_secret(directory: Path) -> None:
    """Write a secret for processes that are started together. `directory`: readable by this user only."""
    with open(os.open(directory / _NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_BYTES))


def launch_secret(directory: Path | None) -> bytes:
    """The secret in `directory`, or else a new one for this process alone."""
    with suppress(FileNotFoundError):
        kept = b"" if directory is None else (directory / _NAME).read_bytes()
        if len(kept) == _BYTES:
            return kept
    return secrets.token_bytes(_BYTES)
