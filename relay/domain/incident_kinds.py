"""The kinds of incidents in one table: severity, title, the sentence with its names and numbers, and the one action.
Also which kind the result of an attempt is. Pure."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from relay.domain.advice import ERRORS, status_words
from relay.domain.exchange import REDIRECTS
from relay.domain.incident import Incident, Kind, Party, incident_id
from relay.domain.reasons import is_of_callback, reason_class
from relay.domain.text import counted

Severity = Literal["error", "warning"]
ActionKind = Literal[
    "secret", "url", "callback", "resume", "verify", "discard", "replay", "configure", "worker", "look"
]
"""How an incident is fixed: a form for the secret, the URL or the callback; a call (`resume`, `verify`, `replay`, or
after a test `discard` of the message in front); or work elsewhere: the entry's settings, a process to start, the
doctor."""


class KindRow(NamedTuple):
    """`cause`: title; `{why}` is the last result. `sentence`: what happens, from the subject on. `patience_s`: how
    long it has to last before it is published."""

    severity: Severity
    cause: str
    sentence: Callable[[Incident, str], str]
    action: ActionKind
    patience_s: float = 0.0


class IncidentAction(NamedTuple):
    """`href`: the page where it is done."""

    kind: ActionKind
    label: str
    href: str


def page_of(id: str) -> str:
    """The page of an incident, below the relay's public URL."""
    return f"/ui/incidents/{id}"


def page_of_letter(party: Party, kind: Kind) -> str:
    """The page of the incident that a dead letter belongs to, or, if its cause turns out to be another one, of those of
    its party."""
    return f"{page_of(incident_id(party, kind))}?party={quote(party.name, safe='')}"


# --- which kind a result is ---------------------------------------------------------------------------------------

_OF_FAILURE: Final[Mapping[str, Kind]] = {
    "blocked": "address_blocked",
    "tls": "tls",
    "dns": "dns",
    "dns_silent": "dns",
    "invalid_url": "wrong_url",
    "no_token": "credentials",
    "unauthorized": "credentials",
}
_OF_STATUS: Final[Mapping[int, Kind]] = {
    **dict.fromkeys((401, 403, 407), "credentials"),
    **dict.fromkeys((*REDIRECTS, 404, 405), "wrong_url"),
    **dict.fromkeys((400, 406, 409, 411, 413, 414, 415, 422, 431), "rejected"),
    410: "gone",
}
_OF_REASON: Final[Mapping[str, Kind]] = {
    "gone": "gone",
    "rejected": "rejected",
    "answer_timeout": "no_answer",
    "receiver_forgot": "no_answer",
    "backlog_full": "backlog",
}
_TIMEOUT: Final = ("connect_timeout", "disconnected", "dns_silent", "invalid_header", "invalid_url")
_FAILURES: Final = (*_TIMEOUT, *(kind for kind in ERRORS if kind not in _TIMEOUT))
"""The longer names first: some contain others."""


def kind_of_attempt(status: int | None, failure: str | None) -> Kind:
    """The kind of cause that the failed attempt with this result has. `failure`: of the NoResponse."""
    if status is not None:
        return _OF_STATUS.get(status, "failing")
    return _OF_FAILURE.get(failure or "", "failing")


def party_of_letter(receiver: str, source_id: str, reason: str, *, came_late: bool = False) -> Party:
    """The party at fault for a dead letter. `came_late`: the message's own deadline had passed when it was accepted."""
    if is_of_callback(reason):
        return Party("source", source_id)
    match "sender" if came_late else reason_class(reason):
        case "sender":
            return Party("source", source_id or "-")
        case "receiver":
            return Party("receiver", receiver)
        case "system":
            return Party("relay", reason)


def kind_of_letter(party: Party, reason: str, status: int | None, detail: str) -> Kind:
    """The kind of cause that dead letters of this party and reason have. `status`, `detail`: of the newest one."""
    if is_of_callback(reason):
        return "callback"
    match party.type:
        case "source":
            return "invalid_messages"
        case "relay":
            return "relay_fault"
        case "receiver":
            by_attempt = kind_of_attempt(status, failure_in(detail) if status is None else None)
            return by_attempt if by_attempt not in ("failing", "rejected") else _OF_REASON.get(reason, by_attempt)


def failure_in(detail: str) -> str | None:
    """The kind of NoResponse in a text of `relay.domain.shown_exchange.failure_detail`."""
    words = detail.partition("; the last: ")[2] or detail
    return next((kind for kind in _FAILURES if kind.replace("_", " ") in words.lower()), None)


def result_words(status: int | None, failure: str | None) -> str:
    """`401 Unauthorized`, or what the lack of a response means; empty if neither is known."""
    if status is not None:
        return status_words(status)
    if failure is None:
        return ""
    return ERRORS[failure].title if failure in ERRORS else failure.replace("_", " ")


# --- sentences ----------------------------------------------------------------------------------------------------

_NUMBERS: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
_SHOWN: Final = 3


def number(count: int) -> str:
    """In words up to twelve, as in running text."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def since_words(since: float, now: float) -> str:
    """`since 04:54 UTC`, with the day if it was another one."""
    at, today = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if at.date() == today.date() else f"{at.day} {at.strftime('%b')} "
    return f"since {day}{at.strftime('%H:%M')} UTC"


def summary(incident: Incident, now: float) -> str:
    """The incident in a sentence or two, with names and numbers. `now`: Unix seconds."""
    sentence = KINDS[incident.kind].sentence(incident, since_words(incident.opened_at, now))
    return " ".join(filter(None, (sentence, _waiting(incident), _innocent(incident))))


def cause(incident: Incident) -> str:
    """The title of its cause."""
    facts = incident.facts
    status = "" if facts.status is None else f" ({facts.status})"
    return KINDS[incident.kind].cause.format(why=facts.why or "no success", status=status, name=incident.party.name)


def action(incident: Incident) -> IncidentAction:
    """The one action that fixes it."""
    kind, href = KINDS[incident.kind].action, page_of(incident.id)
    if kind == "worker":
        href = "/ui/workers?served=false"
    elif kind == "look":
        href = "/ui/doctor"
    elif kind == "configure" and incident.party.type == "source":
        href = f"/ui/sources/{quote(incident.party.name, safe='')}"
    return IncidentAction(kind, "Try now" if incident.kind == "failing" else LABELS[kind], href)


def _waiting(incident: Incident) -> str:
    """What it holds up: what still waits, and the dead letters."""
    of = {"callback": "result", "no_worker": "record", "lag": "record", "retention": "record"}.get(
        incident.kind, "message"
    )
    if not incident.waiting or incident.kind == "head_of_line":
        return ""
    letters, queued = incident.facts.letters, max(0, incident.waiting - incident.facts.letters)
    waits = f"{counted(queued, of)} {'waits' if queued == 1 else 'wait'}." if queued else ""
    dead = f"{counted(letters, 'dead letter', incident.facts.letters_more)} can be replayed." if letters else ""
    return " ".join(filter(None, (waits, dead)))


def _innocent(incident: Incident) -> str:
    """Receivers whose dead letters are not theirs."""
    facts = incident.facts
    if incident.kind != "callback" or not facts.receivers_all:
        return ""
    if facts.receivers_all == 1:
        return f"The receiver {facts.receivers[0]} is not to blame."
    shown = f": {', '.join(facts.receivers)}" if facts.receivers_all <= _SHOWN else ""
    return f"{number(facts.receivers_all).capitalize()} receivers are not to blame{shown}."


def _why(incident: Incident) -> str:
    return f" ({incident.facts.why})" if incident.facts.why else ""


def _at_host(incident: Incident) -> str:
    return f" at {incident.facts.host}" if incident.facts.host else ""


def _condition(incident: Incident) -> str:
    return f"; {incident.facts.condition}" if incident.facts.condition else ""


def _items(incident: Incident) -> str:
    items = incident.facts.items
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _detail(incident: Incident) -> str:
    return f": {incident.facts.detail.rstrip('.')}" if incident.facts.detail else ""


def _callback(one: Incident, since: str) -> str:
    results = "every result" if one.facts.every else "results"
    verb = "has rejected" if one.facts.status is not None and one.facts.status < 500 else "has failed for"
    return f"{one.party.name}'s callback{_at_host(one)} {verb} {results} {since}{_why(one)}{_condition(one)}."


def _of_receiver(does: str) -> Callable[[Incident, str], str]:
    def sentence(one: Incident, since: str) -> str:
        return f"{one.party.name}{_at_host(one)} {does} {since}{_why(one)}{_condition(one)}."

    return sentence


def _address(what: str) -> Callable[[Incident, str], str]:
    def sentence(one: Incident, since: str) -> str:
        return f"{what.format(name=one.party.name, host=one.facts.host or 'its host')} {since}{_condition(one)}."

    return sentence


def _with_detail(what: str) -> Callable[[Incident, str], str]:
    def sentence(one: Incident, since: str) -> str:
        return f"{what.format(name=one.party.name, why=one.facts.why)} {since}{_detail(one)}."

    return sentence


def _head_of_line(one: Incident, since: str) -> str:
    if not one.waiting:
        facts = one.facts
        return f"{one.party.name}: none waits behind {facts.message_id!r} of source {facts.source_id!r} any more."
    return f"{one.party.name}: {behind_words(one)} {since}{_detail(one)}."


def behind_words(one: Incident) -> str:
    """How many wait behind which message."""
    waits = "waits" if one.waiting == 1 else "wait"
    return (
        f"{counted(one.waiting, 'message')} {waits} behind {one.facts.message_id!r} of source {one.facts.source_id!r}"
    )


def _no_worker(one: Incident, since: str) -> str:
    role = one.party.name
    return f"No process has served {_items(one)} {since}. Start one with the role {role} (relay run --roles {role})."


LABELS: Final[Mapping[ActionKind, str]] = {
    "secret": "Change the secret",
    "url": "Change the URL",
    "callback": "Change the callback",
    "resume": "Resume",
    "verify": "Verify",
    "discard": "Test or discard",
    "replay": "Replay",
    "configure": "See the settings",
    "worker": "See the lanes",
    "look": "See the doctor",
}
KINDS: Final[Mapping[Kind, KindRow]] = {
    "store_away": KindRow(
        "error", "A part of the relay is unavailable", _with_detail("{name} has been unavailable"), "look", 5.0
    ),
    "retention": KindRow(
        "error",
        "Unread records are deleted, or will be",
        _with_detail("Unread records of {name} have been deleted, or close to deletion,"),
        "worker",
    ),
    "no_worker": KindRow("error", "No worker serves a topic", _no_worker, "worker", 30.0),
    "relay_fault": KindRow(
        "error", "The relay failed", _with_detail("Messages have failed in the relay itself ({name})"), "replay"
    ),
    "configuration": KindRow(
        "error", "Its settings cannot be used", _with_detail("The settings of {name} have been unusable"), "configure"
    ),
    "callback": KindRow("error", "The callback fails: {why}", _callback, "callback"),
    "credentials": KindRow(
        "error", "The receiver rejected our credentials{status}", _of_receiver("has rejected our credentials"), "secret"
    ),
    "address_blocked": KindRow(
        "error",
        "The address is blocked",
        _address("The relay has not been allowed to call {host}, the address of {name},"),
        "url",
    ),
    "tls": KindRow("error", "The TLS handshake fails", _with_detail("TLS with {name} has failed"), "url"),
    "dns": KindRow(
        "error", "The host name is not known", _address("The host name {host} of {name} has not resolved"), "url"
    ),
    "wrong_url": KindRow(
        "error", "Its URL accepts no messages{status}", _of_receiver("has accepted no messages at its URL"), "url"
    ),
    "gone": KindRow("error", "The receiver is gone (410)", _of_receiver("has responded that it is gone"), "resume"),
    "disabled": KindRow(
        "error",
        "It was switched off after a long outage",
        _of_receiver("has been switched off after a long outage"),
        "resume",
    ),
    "failing": KindRow("error", "It fails: {why}", _of_receiver("has failed"), "resume", 6.0),
    "head_of_line": KindRow("warning", "A message holds up others", _head_of_line, "discard"),
    "rejected": KindRow("warning", "It rejects messages{status}", _of_receiver("has rejected messages"), "replay"),
    "no_answer": KindRow(
        "warning", "It accepts messages and does not answer", _of_receiver("has not answered"), "replay"
    ),
    "backlog": KindRow("warning", "Too many messages wait for it", _of_receiver("has not kept up"), "replay"),
    "lag": KindRow("warning", "Records wait for long", _with_detail("{name} has been behind"), "worker", 30.0),
    "invalid_messages": KindRow(
        "warning",
        "Messages cannot be routed: {why}",
        _with_detail("{name} has sent messages that fail ({why})"),
        "replay",
    ),
    "warning": KindRow("warning", "The relay needs attention", _with_detail("{name}"), "look", 30.0),
    "unverified": KindRow(
        "warning",
        "Its URL is not verified",
        _with_detail("{name} has waited for the verification of its URL"),
        "verify",
    ),
    "paused": KindRow("warning", "It is paused", _with_detail("{name} has been paused"), "resume"),
}
"""By kind, in the order of urgency."""
PATIENCE_S: Final[Mapping[Kind, float]] = {kind: row.patience_s for kind, row in KINDS.items()}


def replay_selection(incident: Incident) -> dict[str, object] | None:
    """The selection of the replay that belongs to it, as `POST /v1/replays` takes it; None without dead letters."""
    facts = incident.facts
    if not facts.letters:
        return None
    chosen: dict[str, object] = {incident.party.type: incident.party.name, "reason": list(facts.reasons)}
    if incident.party.type == "relay":
        del chosen["relay"]
    return chosen
