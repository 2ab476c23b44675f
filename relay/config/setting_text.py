"""Formats the values of settings for display, as they would be written, with secrets masked."""

from typing import Final, get_args

from pydantic import SecretStr

from relay.config.settings import Settings
from relay.domain.durations import format_duration
from relay.domain.secrecy import MASK, masked_url


def _has_secret(kind: object) -> bool:
    return kind is SecretStr or any(map(_has_secret, get_args(kind)))


SECRET_SETTINGS: Final = frozenset(name for name, one in Settings.model_fields.items() if _has_secret(one.annotation))
"""Settings whose values must not appear in any message."""
_SHARES: Final = frozenset({"attempt_log"})
"""Numbers that are not durations."""
SET_BY_COMMAND: Final = "the command itself"
"""The origin of values that a command sets on its own, such as `relay dev`."""
ALSO_FROM: Final = {
    "no_proxy": "no_proxy",
    "NO_PROXY": "no_proxy",
    "SENTRY_DSN": "sentry_dsn",
    "SENTRY_ENVIRONMENT": "sentry_environment",
}
"""Variables without our prefix that are read, too."""


def shown_value(name: str, value: object) -> str:
    """A setting's value as it is written; MASK for a secret."""
    if value is None:
        return ""
    if name in ("redis_url", "history_url") and isinstance(value, SecretStr):
        return _without_password(value.get_secret_value())
    if isinstance(value, SecretStr):
        return MASK
    if name in SECRET_SETTINGS and isinstance(value, tuple):
        return ",".join([MASK] * len(value))
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if name in _SHARES else format_duration(value)
    return str(value)


def _without_password(url: str) -> str:
    """A server's URL with its password masked. If the password has characters that make the URL invalid, every part
    that may belong to it is masked."""
    head, mark, query = url.partition("?")
    login, at, rest = head.rpartition("@")
    if at:
        scheme, _, user = login.partition("://")
        head = f"{scheme}://{user.partition(':')[0]}:{MASK}@{rest}"
    return head + mark + (MASK if "@" in query else masked_url(mark + query).removeprefix(mark))
