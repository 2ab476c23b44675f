"""Parses quotas such as `6000/1m`: a number of messages, and the period for which it holds."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from relay.domain.durations import parse_duration
from relay.domain.quota import LONGEST_WINDOW_S, MOST_MESSAGES, Quota

NO_QUOTA: Final = "none"
_WRITTEN: Final = re.compile(r"([0-9]{1,10}) ?/ ?([0-9].*)", re.DOTALL)
_ALLOWED: Final = "give messages and whole seconds or a duration, such as 100/1s, 6000/1m or 1000000/1d"


def parse_quota(text: str) -> Quota:
    """The quota in `text`. Raises ValueError that names the allowed form."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a quota; {_ALLOWED}")
    messages, window_s = int(found[1]), parse_duration(found[2])
    if not 0 < messages <= MOST_MESSAGES:
        raise ValueError(f"{messages} messages are not a valid quota; allowed: 1 to {MOST_MESSAGES}")
    if not (1 <= window_s <= LONGEST_WINDOW_S and window_s.is_integer()):
        raise ValueError(f"{found[2]} is not a valid period of a quota; allowed: whole seconds, 1s to 1d")
    return Quota(messages, int(window_s))


def quota_of(text: str | None) -> Quota | Literal["none"] | None:
    """The quota in a validated text."""
    return None if text is None else NO_QUOTA if text == NO_QUOTA else parse_quota(text)


def _checked(text: str) -> str:
    if text != NO_QUOTA:
        parse_quota(text)
    return text


def _read(value: object) -> Quota | None:
    if value is None or isinstance(value, Quota):
        return value
    return None if value == NO_QUOTA else parse_quota(str(value))


QuotaText = Annotated[
    str,
    AfterValidator(_checked),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?:none|[0-9]{1,10} ?/ ?[0-9]+(?:\.[0-9]+)? ?(?:ms|s|m|h|d)?)$",
            "description": "Number of messages and the period for which it holds, such as 6000/1m; or none.",
        }
    ),
]
"""A quota in an entry, kept as it was written."""
QuotaSetting = Annotated[Quota | None, BeforeValidator(_read)]
"""A quota in the settings; `none` is None."""
