"""Types of values in entries and settings: durations, times, quotas, texts, names, URLs, secrets, retries, breaker."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from relay.config.problems import SECRET_FIELDS
from relay.config.references import check_no_expression, check_references, has_reference
from relay.domain.headers import MOST_URL
from relay.domain.identity import is_receiver_name
from relay.domain.receiver import LONGEST_WINDOW_S, MOST_MESSAGES, Quota, SignatureStyle
from relay.domain.signing import check_secret, is_private_key
from relay.domain.times import LONGEST_S, WRITTEN, parse_duration, parse_moment
from relay.domain.topics import SHARED
from relay.domain.urls import malformed


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Keeps a value for which `check` does not raise ValueError. `check` gets a secret as text."""

    def validate(value: Any) -> Any:
        check(value.get_secret_value() if isinstance(value, SecretStr) else value)
        return value

    return AfterValidator(validate)


def unless_reference(check: Callable[[str], object]) -> AfterValidator:
    """As `checked`, for texts without a `${NAME}`; a text with one is checked when it is resolved."""
    return checked(lambda text: has_reference(text) or check(text))


FieldData = Mapping[str, Any]
"""The valid fields before the one that is checked, by name."""


def field_check(*fields: str) -> Callable[[Callable[[Any, Any, FieldData], None]], Any]:
    """As `checked`, for a method that compares these fields with those before them."""

    def decorate(check: Callable[[Any, Any, FieldData], None]) -> Any:
        def validate(cls: Any, value: Any, info: ValidationInfo) -> Any:
            check(cls, value, info.data)
            return value

        return field_validator(*fields)(classmethod(validate))

    return decorate


_DURATION_SCHEMA: Final[dict[str, object]] = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": LONGEST_S},
        {"type": "string", "pattern": f"^(?:{WRITTEN.pattern})$"},
    ],
    "description": "Seconds as a number, or with a unit: 500ms, 15s, 10m, 1h, 2d.",
}

Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_DURATION_SCHEMA)]
"""Seconds, from 0 to 100 years."""

PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0), WithJsonSchema(_DURATION_SCHEMA)]
"""Seconds, more than 0, and at most 100 years."""


Moment = Annotated[
    float,
    BeforeValidator(parse_moment),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "format": "date-time"}],
            "description": "Unix seconds, or RFC 3339: 2026-11-23T12:00:00Z.",
        }
    ),
]


NO_QUOTA: Final = "none"
_QUOTA: Final = re.compile(r"([0-9]{1,10}) ?/ ?([0-9].*)", re.DOTALL)
_QUOTA_FORM: Final = "give messages and whole seconds or a duration, such as 100/1s, 6000/1m or 1000000/1d"


def parse_quota(text: str) -> Quota:
    """The quota in `text`. Raises ValueError that names the allowed form."""
    found = _QUOTA.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a quota; {_QUOTA_FORM}")
    messages, window_s = int(found[1]), parse_duration(found[2])
    if not 0 < messages <= MOST_MESSAGES:
        raise ValueError(f"{messages} messages are not a valid quota; allowed: 1 to {MOST_MESSAGES}")
    if not (1 <= window_s <= LONGEST_WINDOW_S and window_s.is_integer()):
        raise ValueError(f"{found[2]} is not a valid period of a quota; allowed: whole seconds, 1s to 1d")
    return Quota(messages, int(window_s))


def quota_of(text: str | None) -> Quota | Literal["none"] | None:
    """The quota in a validated text."""
    return None if text is None else NO_QUOTA if text == NO_QUOTA else parse_quota(text)


def _quota_setting(value: object) -> Quota | None:
    if value is None or isinstance(value, Quota):
        return value
    return None if value == NO_QUOTA else parse_quota(str(value))


QuotaText = Annotated[
    str,
    checked(quota_of),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?:none|[0-9]{1,10} ?/ ?[0-9]+(?:\.[0-9]+)? ?(?:ms|s|m|h|d)?)$",
            "description": "Number of messages and the period for which it holds, such as 6000/1m; or none.",
        }
    ),
]
"""A quota in an entry, kept as it was written."""
QuotaSetting = Annotated[Quota | None, BeforeValidator(_quota_setting)]
"""A quota in the settings; `none` is None."""


MAX_LABELS: Final = 16
_OWNER: Final = re.compile(r"[A-Za-z0-9._:@|/+=~-]{1,64}")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9._/-]{1,64}")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9._:@|/+=~ -]{0,64}")


def describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Give each field the text below it as its description. Pydantic's `use_attribute_docstrings` parses the source at
    each import, which took 0.06 s of a start."""
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        if name in meanings:
            schema["properties"][field.alias or name]["description"] = meanings[name]


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it."""
    kinds = [kind for kind in reversed(model.__mro__) if kind not in BaseModel.__mro__]
    return {name: text for kind in kinds for name, text in _meanings_in(kind.__module__)[kind.__name__].items()}


@cache
def _meanings_in(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the text below it."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: dict(_meanings_below(node.body)) for node in body if isinstance(node, ast.ClassDef)}


def _meanings_below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(below.value.value)


class Entry(BaseModel):
    """A mapping with fixed fields."""

    # strict, so that mistakes such as `rate_limit: "100"` or `enabled: 1` are reported
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        serialize_by_alias=True,
        json_schema_extra=describe,
        defer_build=True,  # at first use: a start needs few of the validators, and building all took 0.06 s of it
    )


def _check_receiver_name(name: str) -> None:
    if name == SHARED:
        raise ValueError(f"{SHARED!r} is the name of the shared lane; no receiver can have it")
    if not is_receiver_name(name):
        raise ValueError("a receiver's name has 1 to 63 of a-z, 0-9 and -, and does not begin with -")


def _check_owner(value: str) -> None:
    if not _OWNER.fullmatch(value):
        raise ValueError("an owner is an id of 1 to 64 of a-z, A-Z, 0-9 and . _ : @ | / + = ~ -")


def _check_label_name(name: str) -> None:
    if not _LABEL_NAME.fullmatch(name):
        raise ValueError("a label's name has 1 to 64 of a-z, A-Z, 0-9 and . _ / -")
    if name in SECRET_FIELDS:
        raise ValueError(f"{name!r} is reserved for secrets; labels are not secret")


def _check_label_value(value: str) -> None:
    if not _LABEL_VALUE.fullmatch(value):
        raise ValueError("a label's value has at most 64 of a-z, A-Z, 0-9, space and . _ : @ | / + = ~ -")


def _check_few(labels: dict[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} labels; at most {MAX_LABELS}")


Text = Annotated[str, checked(check_references)]
SomeText = Annotated[str, Field(min_length=1), checked(check_references)]
ReceiverName = Annotated[str, checked(_check_receiver_name)]
OwnerId = Annotated[str, checked(_check_owner)]
"""An opaque id, which the relay does not interpret."""
Labels = Annotated[
    dict[Annotated[str, checked(_check_label_name)], Annotated[str, checked(_check_label_value)]], checked(_check_few)
]
TEXT_OR_LIST: Final = Discriminator(lambda value: "(list)" if isinstance(value, list | tuple) else "(text)")
"""Selects the member of a union, so that errors are only about the form that was written."""


def check_url(url: str) -> str:
    """`url`, if it can be requested: http(s), with a valid host, without user name and fragment. Raises ValueError."""
    if len(url) > MOST_URL:
        raise ValueError(f"a URL has at most {MOST_URL} characters; this one has {len(url)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a URL is ASCII without spaces; percent-encode everything else")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("not a URL; write it as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("a URL must not have a user name or password; use bearer_token or headers")
    if "#" in url:
        raise ValueError("a URL must not have a fragment (#...)")
    if why := malformed(url):
        raise ValueError(why)
    return url


Url = Annotated[Text, unless_reference(check_url)]
MAX_SECRETS: Final = 16
"""Each one costs a signature, or a verification, per request."""
MAX_SECRET: Final = 4_096
Secret = Annotated[Text, checked(check_no_expression), Field(max_length=MAX_SECRET), unless_reference(check_secret)]
Secrets = Annotated[
    Annotated[Secret, Tag("(text)")]
    | Annotated[tuple[Secret, ...], Field(strict=False, max_length=MAX_SECRETS), Tag("(list)")],
    TEXT_OR_LIST,
]
MAX_FORMER: Final = 3


class FormerSecretEntry(Entry):
    """A replaced secret, which still signs beside the current ones until a given time."""

    secret: Secret
    """The replaced secret."""
    until: Moment
    """When it stops signing (RFC 3339)."""


FormerSecrets = Annotated[tuple[FormerSecretEntry, ...], Field(strict=False, max_length=MAX_FORMER)]
Signature = Annotated[
    Annotated[Literal[SignatureStyle, "none"], Tag("(text)")]
    | Annotated[tuple[SignatureStyle, ...], Field(strict=False, min_length=1), Tag("(list)")],
    TEXT_OR_LIST,
]


_ASYMMETRIC: Final = frozenset({"standard", "http-message"})
"""Styles that have an asymmetric signature."""


def check_agreement(styles: tuple[str, ...], secrets: tuple[str, ...]) -> None:
    """Raises ValueError unless each of `styles` can sign with `secrets`, and each secret is used."""
    for style in styles:
        if styles.count(style) > 1:
            raise ValueError(f"{style!r} is listed twice: it would sign one header twice")
        if style != "none" and not secrets:
            raise ValueError(f"{style!r} needs a secret to sign with")
        if style == "none" and secrets:
            raise ValueError("'none' contradicts the secret; leave one of the two out")
        if style not in _ASYMMETRIC and has_only_private_keys(secrets):
            raise ValueError(f"{style!r} signs with an HMAC: it needs a secret other than a private key (whsk_)")
    if not _ASYMMETRIC.intersection(styles) and any(map(is_private_key, secrets)):
        raise ValueError(
            "a private key (whsk_) signs only in the style 'standard' or 'http-message'; list one, or leave the key out"
        )


def has_only_private_keys(secrets: tuple[str, ...]) -> bool:
    """Whether an HMAC could use none of them."""
    return bool(secrets) and all(map(is_private_key, secrets))


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Factor = Annotated[float, Field(ge=1, le=1000)]


def _at_least_base(cap: float, info: ValidationInfo) -> float:
    base = info.data.get("base", 0.0)
    if cap < base:
        raise ValueError(f"{cap:g} s is less than base, {base:g} s")
    return cap


class RetryEntry(Entry):
    """When to retry; the first limit reached ends the delivery."""

    base: PositiveDuration = 5.0
    """Longest wait after the first attempt."""
    factor: Factor = 2.0
    """Factor by which the longest wait grows with each attempt."""
    cap: PositiveDuration = 3600.0
    """Upper limit of the longest wait, at least `base`. The actual wait is drawn uniformly from 0 to the longest (full
    jitter)."""
    max_attempts: Count = 20
    """Maximum number of attempts, including the first; then the delivery is a dead letter `exhausted`."""
    max_age: PositiveDuration = 172_800.0
    """Age of the message at which the delivery is given up, as a dead letter `expired`."""

    _not_under_base = field_validator("cap")(_at_least_base)


class BreakerEntry(Entry):
    """`failures` in a row within `window` open the breaker for `open_for`."""

    failures: Count = 10
    """Number of failures in a row that open the breaker."""
    window: PositiveDuration = 60.0
    """Time within which these failures must occur."""
    open_for: PositiveDuration = 30.0
    """Time for which nothing is sent; then a single attempt decides whether the breaker closes."""


class OfflineEntry(Entry):
    """An endpoint that is down for longer than `after` gets only a ping every `ping_every`, until it answers one. After
    `disable_after` it is paused until an operator resumes it."""

    after: PositiveDuration = 600.0
    """Duration of an outage after which the endpoint gets only pings."""
    ping_every: Annotated[PositiveDuration, Field(ge=1, le=43_200)] = 60.0
    """Time between pings."""
    disable_after: PositiveDuration = 432_000.0
    """Duration of an outage after which the endpoint is paused until an operator resumes it."""

    @field_check("disable_after")
    def _beyond_after(cls, disable_after: float, data: FieldData) -> None:
        after = data.get("after", 0.0)
        if disable_after <= after:
            raise ValueError(f"{disable_after:g} s is not more than after, {after:g} s")


class PollEntry(Entry):
    """Waits between status GETs."""

    base: PositiveDuration = 2.0
    """Wait before the first status GET."""
    factor: Factor = 1.5
    """Factor by which the wait grows with each status GET."""
    cap: PositiveDuration = 60.0
    """Longest wait between two status GETs, at least `base`."""

    _not_under_base = field_validator("cap")(_at_least_base)


def waits_of(entry: RetryEntry | PollEntry) -> dict[str, Any]:
    """The fields of its policy. The default of `cap` does not cut a longer `base` short."""
    return entry.model_dump() | {"cap": max(entry.cap, entry.base)}
