"""Unresolved incidents as the overview lists them: with a call of this API that may help. Pure."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from relay.domain.incident import Facts, Incident, Kind, Marks, Observation, Party, state_of
from relay.domain.incident_kinds import KINDS, action, behind_words, cause, replay_selection, summary
from relay.domain.times import rfc3339
from relay.schema.messages import MessageRef
from relay.schema.overview import ActionView, AlertKind, AttentionView, HistoryNowView

LATE_S: Final = 60.0
"""A history that lags by more than this is reported."""
_KINDS: Final[Mapping[Kind, AlertKind]] = {
    "store_away": "part_away",
    "retention": "unread_lost",
    "no_worker": "no_worker",
    "configuration": "refused",
    "disabled": "disabled",
    "gone": "gone",
    "head_of_line": "held_up",
    "unverified": "unverified",
    "paused": "paused",
    "warning": "warning",
    "lag": "warning",
}
_PLAIN: Final = frozenset({"part_away", "warning", "refused"})
"""Alerts whose detail is the problem alone."""


def needs_attention(one: Incident, marks: Marks) -> bool:
    """Whether its cause is still observed, and no person has resolved it."""
    return one.cleared_at is None and state_of(one, marks) != "resolved"


def lag_of_history(history: HistoryNowView | None, now: float) -> list[Observation]:
    """That the history lags, which only a process that queries its store knows. `now`: Unix seconds."""
    if history is None:
        return []
    behind_s = history["behind_s"]
    if behind_s is not None and behind_s < LATE_S:
        return []
    why = "it is unknown how far it is behind: its store does not answer"
    if behind_s is not None:
        why = f"it is {behind_s:.0f} s behind: messages and attempts of since then are not in lists yet"
    return [Observation("lag", Party("relay", "history"), now, facts=Facts(detail=why))]


def attention_of(one: Incident, now: float) -> AttentionView:
    kind = _kind(one)
    about, mend = one.facts if one.kind == "head_of_line" else None, action(one)
    return {
        "kind": kind,
        "severity": KINDS[one.kind].severity,
        "subject": f"{one.party.name}/callback" if _is_of_callback(one) else one.party.name,
        "party": {"type": one.party.type, "name": one.party.name},
        "since": None if kind == "part_away" else rfc3339(one.opened_at),
        "detail": _detail(one, kind, now),
        "action": _action(one),
        "message": None if about is None else MessageRef(source_id=about.source_id, message_id=about.message_id),
        "incident": one.id,
        "cause": cause(one),
        "label": mend.label,
        "page": mend.href,
    }


def _detail(one: Incident, kind: AlertKind, now: float) -> str:
    if one.kind == "head_of_line":
        return f"{behind_words(one)}: {one.facts.detail}"
    return one.facts.detail if kind in _PLAIN and one.facts.detail else summary(one, now)


def _is_of_callback(one: Incident) -> bool:
    return one.party.type == "source" and one.kind in ("callback", "paused")


def _kind(one: Incident) -> AlertKind:
    if one.kind in _KINDS:
        return _KINDS[one.kind]
    if one.facts.letters:
        return "failed"
    return "offline" if "ping" in one.facts.condition else "failing"


def _action(one: Incident) -> ActionView | None:
    name, facts = one.party.name, one.facts
    base = f"/v1/receivers/{name}"
    if one.party.type == "source":
        base = f"/v1/sources/{quote(name, safe='')}/callback"
    match KINDS[one.kind].action:
        case "verify":
            return _call("Verify", f"{base}/verify")
        case "discard":
            message = f"{quote(facts.source_id, safe='')}/messages/{quote(facts.message_id, safe='')}"
            return _call("Discard", f"/v1/sources/{message}/deliveries/{name}/discard")
        case "worker" | "look" | "configure":
            return None
    if one.kind in ("gone", "disabled", "paused"):
        return _call("Resume", f"{base}/resume")
    if (selection := replay_selection(one)) is not None:
        since = {} if facts.since is None else {"since": rfc3339(facts.since)}
        return _call("Replay", "/v1/replays", {**selection, **since})
    return None if one.party.type == "relay" else _call("Try now", f"{base}/resume")


def _call(label: str, path: str, body: dict[str, object] | None = None) -> ActionView:
    return {"label": label, "method": "POST", "path": path, "body": body}
