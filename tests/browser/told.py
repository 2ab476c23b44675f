"""Sample responses of the API about messages, for pages; tests change single values."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from relay.domain.state import delivery_state, message_state
from relay.schema.replays import LetterGroupList, LetterGroupView, LetterView

BEGUN: Final = datetime(2026, 11, 22, 14, 3, 7, 120_000, UTC).timestamp()


def at(seconds: float) -> str:
    """RFC 3339 time, so many seconds after BEGUN."""
    return datetime.fromtimestamp(BEGUN + seconds, UTC).isoformat().replace("+00:00", "Z")


def delivery(receiver: str = "ci", status: str = "response_delivered_to_sender", **values: Any) -> dict[str, Any]:
    callback = values.get("callback") or {}
    wait = values.get("waiting_for") or {}
    known = {"attempts": values.get("attempts", 1), "wait": wait.get("kind"), "callback": callback.get("status")}
    return {
        "receiver": receiver,
        "status": status,
        "state": delivery_state(status, reason=values.get("reason"), **known),  # type: ignore[arg-type]
        "generation": 0,
        "attempts": 1,
        "next_attempt_at": None,
        "waiting_for": None,
        "last_status": 200,
        "reason": None,
        "detail": None,
        "advice": None,
        "answer": None,
        "callback": None,
        **values,
    }


def message(*deliveries: Mapping[str, Any], status: str = "arrived", **values: Any) -> dict[str, Any]:
    return {
        "source_id": "github",
        "message_id": "build-4711",
        "webhook_id": "msg_7b1hq2v3o5w6x7y8z9a0b1c2d3",
        "type": "push",
        "status": status,
        "state": message_state((each["state"] for each in deliveries), "arrived"),
        "received_at": at(0),
        "at": {"topic": "from_sender", "partition": 3, "offset": 4711},
        "duplicate": False,
        "deliveries": list(deliveries),
        **values,
    }


def listed(one: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """The message as an item of the list."""
    names = (
        *("receiver", "status", "state", "generation", "attempts", "last_status", "reason", "detail"),
        *("next_attempt_at", "waiting_for"),
    )
    shown = [{name: each[name] for name in names} | {"updated_at": at(60)} for each in one["deliveries"]]
    kept = {
        name: one[name] for name in ("source_id", "message_id", "webhook_id", "type", "status", "state", "received_at")
    }
    return {**kept, "size": 2_114, "content_type": "application/json", "preview": None, "deliveries": shown, **values}


def attempt(seconds: float, took_ms: float, status: int | None = 200, **values: Any) -> dict[str, Any]:
    """A POST that began so long after BEGUN. `status` None: there was no response; say `error` then."""
    response = {
        "status": status,
        "headers": {"content-type": "application/json", "server": "ci/3.2"},
        "body": '{"id": "job-17", "state": "pending"}',
        "truncated": False,
    }
    return {
        "partition": 0,
        "offset": round(seconds * 1000),
        "kind": "post",
        "receiver": "ci",
        "source_id": "github",
        "message_id": "build-4711",
        "generation": 0,
        "attempt": 1,
        "started_at": at(seconds),
        "duration_ms": took_ms,
        "request": {
            "method": "POST",
            "url": "https://ci.example/hooks",
            "headers": {
                "content-type": "application/json",
                "webhook-id": "msg_7b1hq2v3o5w6x7y8z9a0b1c2d3",
                "webhook-timestamp": "1795356187",
                "webhook-signature": "v1,***",
                "ce-id": "build-4711",
                "relay-attempt": "1",
            },
        },
        "response": None if status is None else response,
        "error": None,
        "outcome": "done",
        "reason": None,
        "detail": None,
        "next_attempt_at": None,
        "code_class": None,
        "rule": None,
        "cut": False,
        **values,
    }


def letter(**values: Any) -> LetterView:
    """A dead letter."""
    usual: LetterView = {
        "receiver": "ci",
        "source_id": "github",
        "message_id": "build-4711",
        "reason": "rejected",
        "class": "receiver",
        "detail": "the receiver answered 422",
        "stage": "to_receiver_ci",
        "attempts": 1,
        "last_status": 422,
        "failed_at": at(30),
        "partition": 3,
        "offset": 17,
        "replay": "/v1/failed/3/17/replay",
    }
    return cast(LetterView, usual | values)


def letter_groups(*letters: LetterView) -> LetterGroupList:
    """The groups of these dead letters, the newest first."""
    found: dict[tuple[str, str], list[LetterView]] = {}
    for each in letters:
        found.setdefault((each["receiver"], each["reason"]), []).append(each)
    items: list[LetterGroupView] = [
        {
            "receiver": receiver,
            "reason": reason,
            "count": len(some),
            "first_at": some[-1]["failed_at"],
            "newest_at": some[0]["failed_at"],
            "hours": [0] * 23 + [len(some)],
            "newest": some[0],
        }
        for (receiver, reason), some in found.items()
    ]
    return {"items": items, "left_out": 0, "more": False}


AT: Final = "/v1/sources/github/messages/build-4711"
PAYLOAD: Final = (
    b'{"ref": "refs/heads/main", "before": "9f2c1e", "repository": {"id": 42, "full_name": "acme/web", "private": true}'
    b', "commits": [{"id": "a1b2c3", "message": "Fix the build", "added": [], "modified": ["Makefile"]}], "size": 1.0}'
)


def api_of(one: Mapping[str, Any], *attempts: Mapping[str, Any], payload: bytes = PAYLOAD) -> dict[str, Any]:
    """The responses of an API with only this message. `attempts`: oldest first."""
    return {
        AT: one,
        f"{AT}/attempts": {"items": list(reversed(attempts)), "cursor": None},
        f"{AT}/payload": payload,
        "/v1/messages": {"items": [listed(one)], "cursor": None, "behind_s": 0.0},
        "/v1/failed": {"items": [], "cursor": None},
        "/v1/failed/groups": letter_groups(),
        "/v1/receivers": {"items": [], "cursor": None},
        "/v1/replays": {"items": [], "cursor": None},
    }


def round_trip() -> dict[str, Any]:
    """A message with a complete round trip, and an event on each part of it."""
    checks = {
        "kind": "status",
        "request": {"method": "GET", "url": "https://ci.example/hooks/build-4711", "headers": {"accept": "*/*"}},
    }
    back = {
        "kind": "callback",
        "request": {
            "method": "POST",
            "url": "https://github.example/results",
            "headers": {"webhook-id": "ans_7b1h_ci_0", "relay-outcome": "answered"},
        },
    }
    answer = {
        "status": 200,
        "content_type": "application/json",
        "body": '{"id": "job-17", "state": "success", "number": 17}',
        "body_base64": None,
    }
    one = delivery(attempts=3, last_status=202, answer=answer,
                   callback={"status": "delivered", "attempts": 2, "last_status": None, "detail": None})  # fmt: skip
    timeout = {"kind": "timeout", "detail": "no status line within 15 s", "sent": True}
    working = {"outcome": "working", "reason": "still working"}
    busy = {"outcome": "retry", "reason": "status", "detail": "503, asked to wait 5 s", "next_attempt_at": at(5.2)}
    return api_of(
        message(one, status="response_delivered_to_sender"),
        attempt(0.01, 180, 503, **busy),
        attempt(5.2, 15_000, None, attempt=2, outcome="doubt", reason="timeout", error=timeout, next_attempt_at=at(30)),
        attempt(30.2, 140, 202, attempt=3),
        attempt(32.4, 21, 202, **checks, attempt=1, **working, next_attempt_at=at(35.4)),
        attempt(35.4, 19, 202, **checks, attempt=2, **working, next_attempt_at=at(40)),
        attempt(40.0, 23, 200, **checks, attempt=3),
        attempt(40.05, 48, 502, **back, outcome="retry", reason="status", detail="502", next_attempt_at=at(45.1)),
        attempt(45.1, 31, 204, **back, attempt=2),
    )  # fmt: skip


def job(**values: Any) -> dict[str, Any]:
    """A replay, half way."""
    names = ("receiver", "source", "reason", "status", "stage", "ids", "since", "until", "first", "last", "rate")
    request = dict.fromkeys(names)
    return {
        "id": "5f0c2ba7d1e94c36",
        "action": "replay",
        "state": "running",
        "detail": None,
        "request": {**request, "receiver": ["ci"], "reason": ["exhausted"], "only_failed": True, "rate": 50.0},
        "made_at": at(100),
        "begun_at": at(101),
        "ended_at": None,
        "counted": 4_000,
        "sent": 1_990,
        "skipped": 10,
        "skipped_because": {"replayed_before": 10},
        "eta": at(200),
        "eta_s": 40.0,
        **values,
    }


def preview(**values: Any) -> dict[str, Any]:
    """The response to a dry run."""
    return {
        "dry_run": True,
        "action": "replay",
        "request": job()["request"],
        "counted": 12,
        "to_send": 11,
        "skipped": 1,
        "skipped_because": {"replayed_before": 1},
        "complete": True,
        "gone": None,
        "not_found": [],
        "unremembered": 0,
        **values,
    }
