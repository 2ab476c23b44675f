"""The settings of a receiver as text and as form fields, and the patch that a form sends. Pure.

Only changed fields are sent, so that an outdated form does not undo another change.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

from relay.client import ApiError
from relay.domain.json_pointer import is_index, pointer_steps
from relay.pages.render import duration
from relay.pages.visit import problem
from relay.schema.receivers import ReceiverView

Kind = Literal["text", "number", "duration", "list", "labels", "expressions", "options", "key_set"]
_BETWEEN: Final[Mapping[str, str]] = {"labels": ",", "expressions": ";"}
"""Separators of `name=value` by the kind: an expression may have a comma. Without any, the mapping is empty."""


@dataclass(frozen=True, slots=True)
class Field:
    """`name`: of the setting. `required`: an empty one is no way back to the default."""

    name: str
    label: str
    kind: Kind = "text"
    hint: str = ""
    required: bool = False


COMMON: Final = (
    Field("post_endpoint", "URL", hint="Messages are POSTed to it.", required=True),
    Field(
        "preset",
        "Preset",
        hint="Of a known system, such as circleci (docs/ci.md). Fields here override it.",
    ),
    Field(
        "status_endpoint",
        "Status URL",
        hint="For the answer after a 202: https://ci.example/jobs/{response.id}.",
    ),
    Field("sources", "Sources", "list", hint="Comma-separated; a trailing * matches any ending."),
    Field("event_types", "Event types", "list", hint="Comma-separated; * matches all."),
    Field("rate_limit", "Rate limit (requests per window; empty = unlimited)", "number"),
    Field("window_size", "Window", "duration", hint="Of the rate limit, for example 1s or 1m."),
    Field("max_in_flight", "Concurrent requests", "number", hint="At most. Empty: 32."),
    Field("timeout", "Timeout", "duration", hint="Of one request, for example 15s."),
    Field("payload", "Payload", hint="full, thin (a URL in its place) or metadata (without the payload)."),
    Field("encrypt", "Encryption keys", "key_set", hint="URL of the JWK Set with which payloads are encrypted."),
    Field("batch", "Batch", "options", hint="Several messages in a POST: max_events=100, linger=200ms."),
    Field("respond_async", "Respond-async", "duration", hint="Asks for a 202 if the answer takes longer, such as 30s."),
    Field("labels", "Labels", "labels", hint="Comma-separated, such as env=production."),
)
_OWNER: Final = Field("owner", "Owner", hint="The owner sees it with their own key, or in the portal.")
_OF_NEW: Final = ("post_endpoint", "preset", "owner", "sources", "event_types", "rate_limit", "labels")
_BY_NAME: Final = {field.name: field for field in (*COMMON, _OWNER)}
NEW_FIELDS: Final = tuple(_BY_NAME[name] for name in _OF_NEW)
NAME: Final = Field("name", "Name", hint="a-z, 0-9 and -. It cannot be changed later.", required=True)

_DURATIONS: Final = frozenset(
    {"window_size", "timeout", "answer_deadline", "window", "open_for", "after", "ping_every", "disable_after"}
    | {"base", "cap", "max_age"}
)
ANEW: Final = "anew:"
"""Begins the name of a field for a credential, before its JSON pointer."""


def credentials_of(refused: ApiError | None) -> list[Field]:
    """Fields for those that the API wants anew; a client key has too many lines for one."""
    if refused is None or refused.kind != "credentials-needed":
        return []
    places = (error["pointer"] for error in refused.errors)
    return [Field(ANEW + place, ".".join(pointer_steps(place))) for place in places if not place.startswith("/tls/")]


class Mistake(NamedTuple):
    """A mistake in a form. `field`: the name of its field, and `label` the text above that; of another setting both are
    the name."""

    field: str
    label: str
    detail: str


def mistakes_of(refused: ApiError | None, fields: Sequence[Field]) -> list[Mistake]:
    """What the API has refused, by the fields of the form instead of by JSON pointers."""
    return [] if refused is None else [_mistake(error, fields) for error in refused.errors]


def _mistake(error: Mapping[str, str], fields: Sequence[Field]) -> Mistake:
    place, detail = ".".join(pointer_steps(error.get("pointer", ""))), error.get("detail", "")
    for field in fields:
        if f"{place}.".startswith(f"{field.name}."):
            inner = place[len(field.name) + 1 :]
            label = field.label.partition(" (")[0]
            return Mistake(field.name, label, f"{inner}: {detail}" if inner and not is_index(inner) else detail)
    return Mistake(place, place, detail)


def renewed_credentials(form: Mapping[str, str]) -> dict[str, object]:
    """The values of such fields, as a merge patch."""
    patch: dict[str, object] = {}
    for name, text in form.items():
        if name.startswith(f"{ANEW}/") and text:
            *outer, last = pointer_steps(name.removeprefix(ANEW))
            inner = patch
            for step in outer:
                inner = cast(dict[str, object], inner.setdefault(step, {}))
            inner[last] = text
    return patch


def shown(value: object, kind: Kind) -> str:
    """The text of a setting in its form field."""
    match value:
        case None:
            return ""
        case int() | float() if kind == "duration":
            return f"{value:g}s"
        case list():
            return ", ".join(map(str, value))
        case dict() if kind == "key_set":
            return str(value.get("jwks_url") or "")
        case dict():
            return f"{_BETWEEN.get(kind, ',')} ".join(f"{name}={each}" for name, each in value.items())
    return str(value)


def wanted_of(form: Mapping[str, str], present: Mapping[str, object], fields: Sequence[Field]) -> dict[str, object]:
    """The patch: the fields whose text has changed. Raises ApiError."""
    found: dict[str, object] = {}
    for field in fields:
        if field.name not in form:
            continue
        text, before = form[field.name].strip(), present.get(field.name)
        if text != shown(before, field.kind):
            found[field.name] = _value(text, field, before)
    return found


def _value(text: str, field: Field, before: object) -> object:
    removed = dict.fromkeys(before) if isinstance(before, dict) else {}  # a merge patch removes null values
    if not text:
        return removed if field.kind in _BETWEEN else None
    match field.kind:
        case "number":
            if not (text.isascii() and text.isdigit()):
                detail = f"{field.label}: {text[:40]!r} is not a whole number"
                raise problem(422, "invalid-receiver", "The receiver is not valid", detail)
            return int(text)
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "labels" | "expressions":
            parts = [part.partition("=") for part in text.split(_BETWEEN[field.kind]) if part.strip()]
            return removed | {name.strip(): value.strip() for name, _, value in parts}
        case "options":
            parts = [part.partition("=") for part in text.split(",") if part.strip()]
            return removed | {name.strip(): _option(value.strip()) for name, _, value in parts}
        case "key_set":
            return removed | {"jwks_url": text}
    return text


def _option(text: str) -> int | float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def settings_of(it: ReceiverView) -> list[tuple[str, str, str]]:
    """Name, value, and where it comes from. Those that were declared come first."""
    declared_by, settings = it["declared_by"], it["settings"] or {}
    declared = {"file": "receivers file", "api": "API"}.get(declared_by or "", declared_by or "")
    origins = dict.fromkeys(it["from_preset"] or (), "preset") | dict.fromkeys(it["given"] or (), declared)
    rows = [(name, settings_text(name, value), origins.get(name, "default")) for name, value in settings.items()]
    return sorted(rows, key=lambda row: (row[2] == "default", row[0]))


def settings_text(name: str, value: object) -> str:
    """Settings for people: durations with a unit, nested values in a line."""
    if value is None or value in ([], {}):
        return ""
    if name in _DURATIONS and isinstance(value, int | float):
        return duration(float(value))
    if isinstance(value, dict) and name == "labels":
        return ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, dict):
        known = [(key, settings_text(key, each)) for key, each in value.items()]
        return ", ".join(f"{key} {text}" for key, text in known if text)
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
