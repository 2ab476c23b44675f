"""The sink's behaviour: pure decisions, with chance and time passed in."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, get_args

Mode = Literal["answer", "ok", "later", "fail", "reject", "hang", "reset", "redirect", "echo"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_HEALTHY: Final[frozenset[Mode]] = frozenset({"answer", "ok", "later", "echo"})
_DOUBTFUL: Final[frozenset[Mode]] = frozenset({"fail", "hang", "reset"})
"""Faults after which the client cannot know whether its message was processed."""
_STATUSES: Final = {"answer": 200, "ok": 204, "echo": 200, "later": 202, "reject": 422, "redirect": 307}


class Knobs(TypedDict, total=False):
    """The fields of `Behaviour` except `mode`, for keyword arguments."""

    delay_s: float
    fail_rate: float
    fail_status: int
    fail_first: int | None
    retry_after: int | None
    later_polls: int
    answer_after_s: float
    callback: bool
    location: bool
    process_before_fail: bool
    answer_size: int
    truncate: bool
    handshakes: bool
    verdicts: bool


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`mode`: the response to a POST.

    `answer`: 200 and a JSON answer like a CI's. `ok`: 204 without a body, like a sender's callback. `later`: 202; the
    answer follows by status GET or callback. `fail`: `fail_status`. `reject`: 422. `hang`: no response. `reset`: the
    connection is reset. `redirect`: 307 to a URL that counts followed redirects. `echo`: 200 and the POST's own body.

    `delay_s`: wait before each response to a POST; if `Prefer: respond-async, wait=N` asks for less, `answer` is
    `later` after N seconds. `fail_rate`: share of POSTs that get `fail_status` instead.
    `fail_first`: only this many first POSTs fail (as in the mode, else with `fail_status`). `retry_after`: seconds,
    sent with failures and 202s. `later_polls`: number of status GETs that get 202 first; none is answered before
    `answer_after_s`. `callback`: the answer is also POSTed to `relay-answer-url`. `location`: 202s have the status URL.
    `process_before_fail`: messages count as processed, and the status endpoint knows them, even if the POST ended in
    `fail`, `hang` or `reset`. `answer_size`: pad answers to this many bytes. `truncate`: announce a longer answer than
    is sent, then close. `handshakes`: answer verification handshakes: echo a challenge, sign nonces (with a secret),
    consent to an OPTIONS. `verdicts`: a batch gets a list with a status for each message, each of which fails as above.
    """

    mode: Mode = "answer"
    delay_s: float = 0.0
    fail_rate: float = 0.0
    fail_status: int = 500
    fail_first: int | None = None
    retry_after: int | None = None
    later_polls: int = 2
    answer_after_s: float = 0.0
    callback: bool = False
    location: bool = False
    process_before_fail: bool = False
    answer_size: int = 0
    truncate: bool = False
    handshakes: bool = True
    verdicts: bool = False

    def status_of(self, met: Mode) -> int | None:
        """The status of the response to a POST with the reaction `met`; None without a response."""
        return self.fail_status if met == "fail" else _STATUSES.get(met)


def reaction(behaviour: Behaviour, *, nth: int, chance: float) -> Mode:
    """The reaction to POST number `nth` (1-based). `chance`: a uniform sample of [0, 1)."""
    fault: Mode = "fail" if behaviour.mode in _HEALTHY else behaviour.mode
    recovered: Mode = behaviour.mode if behaviour.mode in _HEALTHY else "answer"
    if behaviour.fail_first is not None:
        return fault if nth <= behaviour.fail_first else recovered
    return "fail" if chance < behaviour.fail_rate else behaviour.mode


_WAIT: Final = re.compile(r"\bwait=(\d{1,9})\b")


def time_to_respond(behaviour: Behaviour, met: Mode, prefer: str) -> tuple[Mode, float]:
    """The reaction and the seconds before it, to a POST with the header `Prefer`: an answer that takes longer than a
    client waits comes later."""
    wait = _WAIT.search(prefer) if "respond-async" in prefer else None
    if met != "answer" or wait is None or behaviour.delay_s <= int(wait[1]):
        return met, behaviour.delay_s
    return "later", float(wait[1])


def is_processed(behaviour: Behaviour, met: Mode) -> bool:
    """Whether the receiver processed a POST with the reaction `met`, whatever its response."""
    return met in _HEALTHY or (behaviour.process_before_fail and met in _DOUBTFUL)


@dataclass(slots=True)
class SinkJob:
    """The receiver's state of a processed message. `ready_at`: monotonic seconds."""

    number: int
    message_id: str
    polls_left: int
    ready_at: float

    def poll(self, now: float) -> bool:
        """Handle a status GET; returns whether the job is finished."""
        if self.polls_left > 0:
            self.polls_left -= 1
            return False
        return now >= self.ready_at

    def document(self, state: Literal["pending", "success"], size: int = 0) -> bytes:
        """The job as JSON, padded to `size` bytes."""
        facts: dict[str, Any] = {
            "id": f"job-{self.number}",
            "state": state,
            "number": self.number,
            "message_id": self.message_id,
        }
        text = json.dumps(facts).encode()
        if len(text) >= size:
            return text
        padding = size - len(json.dumps({**facts, "log": ""}).encode())
        return json.dumps({**facts, "log": "." * max(0, padding)}).encode()


def new_job(behaviour: Behaviour, met: Mode, *, number: int, message_id: str, now: float) -> SinkJob:
    """The job of a processed POST; only in mode `later` it is unfinished at first."""
    if met != "later":
        return SinkJob(number, message_id, 0, now)
    return SinkJob(number, message_id, behaviour.later_polls, now + behaviour.answer_after_s)
