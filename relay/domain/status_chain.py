"""Chains of status GETs (`status_steps`): the URL of each step, the meaning of its response, and what the hop carries
of the steps so far (`Hop.chain`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from relay.domain.errors import ExpressionError
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.expression import Expression, Variables, work_budget
from relay.domain.expression_values import Path, needed, part_of
from relay.domain.hop import Hop
from relay.domain.json_pointer import NOT_JSON
from relay.domain.outcome import Answered
from relay.domain.receiver import Receiver, StatusStep
from relay.domain.schedule import requested_wait
from relay.domain.status import AskLater, NeverSeen, StatusReading, StillRunning, is_cut_off, read_status, whole_body
from relay.domain.template import paths_of, url_of, value_of
from relay.domain.variables import delivery_variables, response_value, response_variables

MOST_CHAIN: Final = 4 * 1024
"""Bytes that a hop carries of a chain."""


class Chain(Struct, frozen=True, omit_defaults=True):
    """How far a delivery is in its chain of status steps, as its pending record has it. `step`: the current one, from
    0. `polls`: status GETs of the steps before it. `response`: of the POST, and `steps`: responses of finished steps;
    only the parts that later expressions need."""

    step: int = 0
    polls: int = 0
    response: dict[str, Any] = {}
    steps: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step is finished, and is not the last one."""

    response: Response


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The last step is finished, and the answer in its own form could not be made. `detail`: why."""

    detail: str


@dataclass(frozen=True, slots=True)
class ChainPosition:
    """Where a chain continues: the URL of the next status GET. `text`: for the hop."""

    url: str
    text: str = field(repr=False)


ChainReading = StatusReading | StepFinished | NoAnswer


def current_step(receiver: Receiver, chain: Chain) -> StatusStep:
    """The last one, if the receiver has fewer by now."""
    return receiver.status_steps[min(chain.step, len(receiver.status_steps) - 1)]


def step_of(receiver: Receiver, step: int) -> str:
    """The step, from 0, in words."""
    return f"step {step + 1} of {len(receiver.status_steps)}"


def decode_chain(text: str | None) -> Chain:
    """The chain of a hop; its beginning if it has none, or if another release wrote it."""
    try:
        return msgspec.json.decode(text or "{}", type=Chain)
    except NOT_JSON:
        return Chain()


def can_be_asked_first(receiver: Receiver) -> bool:
    """Whether the URL of the first step is known without the response to the POST."""
    steps = receiver.status_steps
    return bool(steps) and all(path[0] not in ("response", "post") for path in steps[0].url.paths)


def first_position(receiver: Receiver, hop: Hop, payload: bytes, response: Response | None = None) -> ChainPosition:
    """Where to ask after a POST. `response`: None if it is not known.

    Raises ExpressionError.
    """
    variables = delivery_variables(hop, payload, attempt=hop.attempt)
    whole = {} if response is None else response_value(response)
    return _position(receiver, Chain(response=_kept(receiver, 0, "response", whole)), whole, (), variables)


def next_position(receiver: Receiver, hop: Hop, payload: bytes, response: Response, *, polls: int) -> ChainPosition:
    """Where to ask after the current step. `response`: the one that finished it. `polls`: status GETs so far.

    Raises ExpressionError.
    """
    chain, variables = decode_chain(hop.chain), delivery_variables(hop, payload, attempt=hop.attempt)
    at = chain.step + 1
    steps = (*chain.steps, response_value(response))
    kept = _kept(receiver, at, "steps", list(steps))
    moved = structs.replace(
        chain,
        step=at,
        polls=polls,
        response=_kept(receiver, at, "response", chain.response),
        steps=tuple(kept) if kept else ({},) * at,
    )
    return _position(receiver, moved, chain.response, steps, variables)


def _position(
    receiver: Receiver,
    chain: Chain,
    response: Mapping[str, object],
    steps: Sequence[Mapping[str, object]],
    variables: Variables,
) -> ChainPosition:
    step = receiver.status_steps[chain.step]
    known = {**variables, "response": response, "post": response, "steps": list(steps)}
    post = receiver.post
    url = url_of(step.url, known, base=post.url, origins=(post.url, *post.allow_origins))
    encoded = msgspec.json.encode(chain)
    if len(encoded) > MOST_CHAIN:
        raise ExpressionError(
            f"status_steps: later steps need {len(encoded)} bytes of responses; at most {MOST_CHAIN} are kept"
        )
    return ChainPosition(url, encoded.decode())


def _kept(receiver: Receiver, at: int, variable: str, value: Any) -> Any:
    """The parts of `value` that expressions after the URL of step `at` need."""
    paths: list[Path] = []
    for number, step in enumerate(receiver.status_steps[at:], at):
        if number > at:
            paths += step.url.paths
        own = [path for each in _conditions(step) for path in each.paths] + paths_of(step.answer)
        paths += [path for path in own if path[0] != "response"]  # in these, it is the step's own
    parts = needed([("response", *path[1:]) if path[0] == "post" else path for path in paths], variable)
    if parts is False:
        return [] if isinstance(value, list) else {}
    found = part_of(value, parts)
    return [each or {} for each in found] if isinstance(found, list) else found


def _conditions(step: StatusStep) -> list[Expression]:
    return [step.until] if step.unknown is None else [step.until, step.unknown]


# --- responses ----------------------------------------------------------------------------------------------------


def read_step(exchange: Exchange, receiver: Receiver, hop: Hop, payload: bytes, *, now: float) -> ChainReading:
    """The meaning of the response to the GET of the current step. `now`: Unix seconds.

    A condition counts only for a 2xx, unless it names `response.status`: error pages have other fields. Every other
    response is read as without steps; but a 2xx always means that the receiver is still working.
    """
    if isinstance(exchange, NoResponse) or is_cut_off(exchange):
        return read_status(exchange, status_map=None, now=now)
    chain = decode_chain(hop.chain)
    step = current_step(receiver, chain)
    known = {
        **delivery_variables(hop, payload, attempt=hop.attempt),
        **response_variables(exchange),
        "post": chain.response,
        "steps": list(chain.steps),
    }
    if step.unknown is not None and _applies(step.unknown, exchange) and _is_true(step.unknown, known) is True:
        return NeverSeen()
    if _applies(step.until, exchange):
        finished = _is_true(step.until, known)
        if finished is True:
            return _finished(exchange, receiver, chain, known)
        if isinstance(finished, str) and exchange.status // 100 == 2 and exchange.status not in (202, 204):
            return AskLater(None, whole=False, kind="expression", detail=finished)
    reading = read_status(exchange, status_map=None, now=now)
    if exchange.status // 100 == 2:
        return StillRunning(requested_wait(exchange.headers, now))
    if isinstance(reading, NeverSeen) and step.unknown is not None:
        return AskLater(None, whole=False, kind="status")
    return reading


def _applies(condition: Expression, response: Response) -> bool:
    return response.status // 100 == 2 or ("response", "status") in condition.paths


def _is_true(condition: Expression, variables: Variables) -> bool | str:
    """The result, or why there is none."""
    try:
        return condition.is_true(variables)
    except ExpressionError as error:
        return str(error)


def _finished(
    response: Response, receiver: Receiver, chain: Chain, variables: Variables
) -> Answered | StepFinished | NoAnswer:
    if chain.step < len(receiver.status_steps) - 1:
        return StepFinished(response)
    step = receiver.status_steps[-1]
    if step.answer is None:
        return whole_body(response)
    try:
        with work_budget:
            answer = msgspec.json.encode(value_of(step.answer, variables))
    except ExpressionError as error:
        return NoAnswer(str(error))
    return Answered(response.status, "application/json", answer, truncated=False)
