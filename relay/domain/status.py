"""Status GETs: the URL to poll for a delivery's answer, and the meaning of the response."""

import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from relay.domain.errors import RelayError
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.headers import MOST_HEADER
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.json_pointer import NOT_JSON, is_index, pointer_of, pointer_steps
from relay.domain.outcome import Answered
from relay.domain.receiver import StatusMap
from relay.domain.schedule import requested_wait
from relay.domain.urls import path_fault, shown

_IDS: Final = ("message_id", "source_id", "webhook_id")
_RESPONSE: Final = "response."
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class StatusTemplateError(RelayError):
    """A placeholder of the status endpoint has no value in the POST's response, or one that must not be part of a path:
    this delivery cannot be polled."""


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The receiver has the message and is still processing it. `ask_after_s`: requested delay of the next poll, if
    any."""

    ask_after_s: float | None


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """The receiver does not know the message."""


@dataclass(frozen=True, slots=True)
class StatusGone:
    """The endpoint no longer exists."""


@dataclass(frozen=True, slots=True)
class AskLater:
    """The response says nothing about the delivery. `whole`: all requests to the receiver have to wait. `kind`: of the
    NoResponse, or `not_now`, `status`, `cut_off`, `too_long`, `not_json`, `no_word`, `unknown_word`. `detail`: the
    response, described."""

    retry_after_s: float | None
    whole: bool
    kind: str
    detail: str = ""


StatusReading = Answered | StillRunning | NeverSeen | StatusGone | AskLater


def check_template(template: str) -> None:
    """Raises ValueError, with a text for the user, unless `template` can be a status endpoint."""
    if not template.isascii() or not template.isprintable() or " " in template:
        raise ValueError("status endpoint must be ASCII without spaces; percent-encode everything else")
    if "#" in template:
        raise ValueError("status endpoint must not have a fragment (#...)")
    for name in _PLACEHOLDER.findall(template):
        fields = name.removeprefix(_RESPONSE).split(".")
        if name not in _IDS and not (name.startswith(_RESPONSE) and all(fields)):
            raise ValueError(
                f"unknown placeholder {{{name}}} in status endpoint; "
                "known are {message_id}, {source_id}, {webhook_id} and {response.<field>}"
            )
    bare = _PLACEHOLDER.sub("x", template)
    if "{" in bare or "}" in bare:
        raise ValueError("status endpoint has a brace without its partner")
    origin = re.match(r"[^/?]*//[^/?]*", template)
    if origin and "{" in origin.group():
        raise ValueError("placeholders of the status endpoint belong after the host, not into it")


def status_url(template: str, delivery: DeliveryId, *, response_body: bytes = b"") -> str:
    """The URL to poll for `delivery`. Values are percent-encoded; without placeholders the ids become query parameters.
    `response_body`: of the POST's response, for `{response.<field>}` (dots lead into nested objects).

    Raises StatusTemplateError if the body does not have such a field as a non-empty string or an integer, if it or an
    id must not be part of a path, or if it makes the URL too long.
    """
    ids = _ids(delivery, webhook_id(delivery.source_id, delivery.message_id))
    if not _PLACEHOLDER.search(template):
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in ids.items())
        return f"{template}{'&' if '?' in template else '?'}{query}"

    def value_of(name: str) -> str:
        return ids[name] if name in ids else _response_field(name, response_body)

    def encoded(match: re.Match[str]) -> str:
        return quote(value_of(match[1]), safe="")

    path, mark, query = template.partition("?")
    for segment in _segments(path):
        fault = _segment_fault(segment, {name: value_of(name) for name in _PLACEHOLDER.findall(segment)})
        if fault is not None:
            raise StatusTemplateError(fault)
    url = _PLACEHOLDER.sub(encoded, path) + mark + _PLACEHOLDER.sub(encoded, query)
    if len(url) > MOST_HEADER and _RESPONSE in template:
        raise StatusTemplateError(f"the answer to the POST makes a status URL of more than {MOST_HEADER:,} characters")
    return url


def unaskable(template: str, delivery: DeliveryId) -> str | None:
    """Why `delivery` cannot be polled at a status endpoint with this template, judged by its ids; None if it can."""
    if not _segments_of_ids(template):
        return None
    ids = _ids(delivery, "")
    return next(filter(None, (_segment_fault(segment, ids) for segment in _segments_of_ids(template))), None)


def _ids(delivery: DeliveryId, own: str) -> dict[str, str]:
    return {"message_id": delivery.message_id, "source_id": delivery.source_id, "webhook_id": own}


def _segments(path: str) -> list[str]:
    """The segments of a template's path that have placeholders."""
    return [segment for segment in path.split("/") if "{" in segment]


@lru_cache(maxsize=4096)
def _segments_of_ids(template: str) -> tuple[str, ...]:
    """The segments that have the sender's ids. Other values in them are not known before the POST."""
    path = template.partition("?")[0]
    return tuple(segment for segment in _segments(path) if "{message_id}" in segment or "{source_id}" in segment)


def _segment_fault(segment: str, values: Mapping[str, str]) -> str | None:
    """Why `values` must not be put into `segment`. A placeholder without a value counts as a letter."""
    whole = _PLACEHOLDER.sub(lambda match: values.get(match[1], "x"), segment)
    for name in _PLACEHOLDER.findall(segment):
        value = values.get(name)
        fault = path_fault(value, whole) if value is not None else None
        if value is not None and fault is not None:
            return f"{{{name}}} of the status endpoint's path would be {shown(value)!r}, which {fault}"
    return None


def _response_field(name: str, body: bytes) -> str:
    try:
        value = msgspec.json.decode(_slice(body, pointer_of(name.split(".")[1:])), type=str | int)
    except LookupError as error:
        raise StatusTemplateError(f"the answer to the POST has no {{{name}}}") from error
    except msgspec.ValidationError as error:
        raise StatusTemplateError(f"{{{name}}} of the answer to the POST is neither a text nor an integer") from error
    except _NOT_THERE as error:
        raise StatusTemplateError(f"the answer to the POST is not readable JSON, so it has no {{{name}}}") from error
    if value == "":
        raise StatusTemplateError(f"the answer to the POST has an empty {{{name}}}")
    return str(value)


def read_status(exchange: Exchange, *, status_map: StatusMap | None, now: float) -> StatusReading:
    """The meaning of the response to a status GET. `now`: Unix seconds, for the date form of `Retry-After`.

    With `status_map`, a 200 is read through it. Any other response means to poll again.
    """
    if isinstance(exchange, NoResponse):
        return AskLater(None, whole=False, kind=exchange.kind)
    if is_cut_off(exchange):
        return AskLater(None, whole=False, kind="cut_off")
    wait_s = requested_wait(exchange.headers, now)
    match exchange.status:
        case 200 if status_map is not None:
            return _mapped(exchange, status_map, wait_s)
        case 200:
            return whole_body(exchange)
        case 202 | 204:
            return StillRunning(wait_s)
        case 404:
            return NeverSeen()
        case 410:
            return StatusGone()
        case 429 | 503:
            return AskLater(wait_s, whole=True, kind="not_now")
        case _:
            return AskLater(wait_s, whole=False, kind="status")


def is_cut_off(response: Response) -> bool:
    """Whether it has only the beginning of what it says about the delivery, and the next poll may get the rest."""
    return response.broken and response.status // 100 == 2


def whole_body(response: Response) -> Answered:
    """The answer that is the response itself."""
    return Answered(response.status, response.headers.get("content-type"), response.body, response.truncated)


def _mapped(response: Response, status_map: StatusMap, wait_s: float | None) -> StatusReading:
    try:
        word = _word(_slice(response.body, status_map.pointer))
    except (LookupError, msgspec.ValidationError):
        return AskLater(wait_s, whole=False, kind="no_word", detail=f"it has no state at {status_map.pointer}")
    except _NOT_THERE:
        if response.truncated:
            return AskLater(wait_s, whole=False, kind="too_long", detail="its body exceeds RELAY_ANSWER_BODY_CAP")
        return AskLater(wait_s, whole=False, kind="not_json")
    if word in status_map.running:
        return StillRunning(wait_s)
    if word in status_map.unknown:
        return NeverSeen()
    if word not in status_map.done:
        why = f"its value at {status_map.pointer} is in none of done, running and unknown"
        return AskLater(wait_s, whole=False, kind="unknown_word", detail=why)
    if status_map.result is None:
        return whole_body(response)
    try:
        return Answered(response.status, "application/json", _slice(response.body, status_map.result), False)
    except _NOT_THERE:  # done, but without a separate result, as is usual for failed jobs
        return whole_body(response)


# --- JSON, by slices: numbers and spelling of the answer stay as the receiver wrote them ------------------------

_NOT_THERE: Final = (*NOT_JSON, LookupError)


def _slice(document: bytes, pointer: str) -> bytes:
    """The bytes of `document` at a JSON pointer (RFC 6901).

    Raises LookupError if there is no value, or another of _NOT_THERE if `document` is not JSON.
    """
    rest = msgspec.json.decode(document.removeprefix(BOM_UTF8), type=msgspec.Raw)
    for step in pointer_steps(pointer):
        rest = _child(bytes(rest), step)
    return bytes(rest)


def _child(parent: bytes, name: str) -> msgspec.Raw:
    if parent.lstrip().startswith(b"["):
        if not is_index(name):
            raise LookupError(f"{name!r} is not an array index")
        return msgspec.json.decode(parent, type=list[msgspec.Raw])[int(name)]
    if not parent.lstrip().startswith(b"{"):
        raise LookupError(f"the parent of {name!r} is not an object")
    return msgspec.json.decode(parent, type=dict[str, msgspec.Raw])[name]


def _word(slice_: bytes) -> str:
    """A status word; `true`, `false` and numbers are used as text. Raises ValidationError for other values."""
    value = msgspec.json.decode(slice_, type=str | bool | int)
    return value if isinstance(value, str) else slice_.decode().strip()
