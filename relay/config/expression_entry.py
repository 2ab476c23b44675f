"""Entries of receivers.yaml with expressions: the request to a receiver, the meaning of its responses, its status
steps, and the request to a sender's callback."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urljoin, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from relay.config.encryption import texts_in
from relay.config.entry_types import Entry, PollEntry, check_url, checked, waits_of
from relay.config.own_address import is_loopback
from relay.config.references import check_references, has_reference, with_references_replaced
from relay.domain.errors import ExpressionError
from relay.domain.expression import OUTCOME, REQUEST, STATUS, Expression, VariableScope, check_expression
from relay.domain.headers import check_header_name
from relay.domain.receiver import OutcomeClass, OutcomeRule, PollPolicy, StatusStep
from relay.domain.request_form import BodyKind, Method, RequestForm
from relay.domain.template import Template, check_url_template, template, tree

MOST_RULES: Final = 32
MOST_STEPS: Final = 8


def condition(scope: VariableScope) -> AfterValidator:
    """Checks an expression whose result is true or false."""
    return checked(lambda text: check_expression(text, scope, condition=True))


def _origin(value: str) -> str:
    if has_reference(value):
        return value
    parts = urlsplit(check_url(value))
    if parts.path not in ("", "/") or parts.query:
        raise ValueError("the URL is more than an origin; write https://host or https://host:port")
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("plain http is only allowed for this machine; write https")
    return value.rstrip("/")


Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Field(strict=False, max_length=32)]


def _header_name(name: str) -> str:
    return name if name.lower() == "content-type" else check_header_name(name)


FormHeader = Annotated[str, AfterValidator(_header_name)]
Templates = dict[str, str]


class RequestEntry(Entry):
    """The request in a form of its own; texts may have expressions `${{ ... }}`."""

    method: Method = "POST"
    """Method of the request."""
    url: str | None = None
    """URL, which may be relative to that of the endpoint; default: that one."""
    query: Templates = Field(default_factory=dict)
    """Parameters that are added to the URL's query."""
    headers: dict[FormHeader, str] = Field(default_factory=dict)
    """Headers that are added; `content-type` replaces that of the body."""
    json_: Any = Field(default=None, alias="json")
    """Body as JSON."""
    form: dict[str, Any] | None = None
    """Body as an HTML form."""
    text: str | None = None
    """Body as text."""

    @field_validator("method", mode="before")
    @classmethod
    def _delivers(cls, method: object) -> object:
        if method in ("GET", "HEAD"):
            raise ValueError(f"{method} delivers nothing; use POST, PUT or PATCH")
        return method

    @field_validator("form")
    @classmethod
    def _flat(cls, form: dict[str, Any] | None) -> dict[str, Any] | None:
        for name, value in (form or {}).items():
            for each in value if isinstance(value, list) else [value]:
                if not isinstance(each, str | int | float | bool):
                    raise ValueError(f"{name!r} is no text, number, true or false, nor a list of these")
        return form

    @model_validator(mode="after")
    def _one_body(self) -> "RequestEntry":
        given = self._bodies()
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: a request has one body; leave all but one out")
        for _, text in texts_in(self.model_dump(mode="json")):
            check_references(text)
        return self

    def _bodies(self) -> dict[BodyKind, Any]:
        bodies: dict[BodyKind, Any] = {"json": self.json_, "form": self.form, "text": self.text}
        return {kind: body for kind, body in bodies.items() if body is not None}

    def compiled(self, scope: VariableScope, place: str = "request") -> RequestForm:
        """Raises ValueError with the place of a wrong expression."""
        kind, body = next(iter(self._bodies().items()), (None, None))
        url = None if self.url is None else url_template(self.url, scope, f"{place}.url", leading=True, relative=True)
        return RequestForm(
            self.method,
            url,
            tuple(_pairs(self.query, scope, f"{place}.query")),
            tuple(_pairs(self.headers, scope, f"{place}.headers")),
            kind,
            None if kind is None else tree(body, scope, f"{place}.{kind}"),
        )


def _pairs(texts: Mapping[str, str], scope: VariableScope, place: str) -> Iterator[tuple[str, Template]]:
    for name, text in texts.items():
        yield name, template(text, scope, f"{place}.{name}")


def url_template(text: str, scope: VariableScope, place: str, *, leading: bool, relative: bool = False) -> Template:
    """The template of a URL. `leading`: it may begin with an expression; `relative`: it may be relative to the URL of
    the endpoint. Raises ValueError."""
    made = template(text, scope, place)
    check_url_template(made, allows_leading=leading, allows_relative=relative)
    shown = with_references_replaced(text, lambda _: "x")
    if made.is_constant and not has_reference(text):
        check_url(urljoin("https://endpoint/", shown) if relative and shown else shown)
    return made


class OutcomeEntry(Entry):
    """A rule about responses of the receiver."""

    when: Annotated[str, condition(OUTCOME)]
    """Expression over `response` and `body` that is true for such responses."""
    is_: OutcomeClass = Field(alias="is")
    """Meaning of such a response."""

    def holds_for(self, status: int) -> bool:
        """Whether it is true for each response with this status: it uses nothing else of the response."""
        when = Expression(self.when, OUTCOME)
        try:
            return {*when.paths} <= {("response", "status")} and when.is_true({"response": {"status": status}})
        except ExpressionError:
            return False


class StepAnswerEntry(Entry):
    """The answer that is brought back to the sender, in a form of its own."""

    json_: Any = Field(alias="json")
    """The answer as JSON, with expressions."""


class StatusStepEntry(Entry):
    """A step in which the receiver is asked for the answer."""

    url: str
    """URL of the status GET, with expressions over the response to the POST and the steps before. It may be relative to
    that of the endpoint."""
    until: Annotated[str, condition(STATUS)]
    """Expression that is true once this step is finished."""
    unknown: Annotated[str, condition(STATUS)] | None = None
    """Expression that is true if the receiver never received the message; default: its status is 404."""
    answer: StepAnswerEntry | None = None
    """The answer, of the last step; default: the whole body."""
    poll: PollEntry | None = None
    """Waits between the status GETs of this step; default: those of the receiver."""


def check_request(request: RequestEntry | None) -> None:
    """Raises ValueError for a wrong expression in a receiver's `request`."""
    if request is not None:
        request.compiled(REQUEST)


def check_steps(steps: tuple[StatusStepEntry, ...]) -> None:
    """Raises ValueError for a wrong expression in a receiver's `status_steps`."""
    status_steps(steps)
    if any(step.answer is not None for step in steps[:-1]):
        raise ValueError("only the last step has an answer")


def status_steps(steps: tuple[StatusStepEntry, ...]) -> tuple[StatusStep, ...]:
    """Raises ValueError for a wrong expression."""
    return tuple(_step(step, f"status_steps[{at}]") for at, step in enumerate(steps))


def _step(step: StatusStepEntry, place: str) -> StatusStep:
    return StatusStep(
        url_template(step.url, STATUS, f"{place}.url", leading=True, relative=True),
        Expression(step.until, STATUS, f"{place}.until"),
        None if step.unknown is None else Expression(step.unknown, STATUS, f"{place}.unknown"),
        None if step.answer is None else tree(step.answer.json_, STATUS, f"{place}.answer.json"),
        None if step.poll is None else PollPolicy(**waits_of(step.poll)),
    )


def outcome_rules(outcomes: tuple[OutcomeEntry, ...]) -> tuple[OutcomeRule, ...]:
    return tuple(
        OutcomeRule(Expression(each.when, OUTCOME, f"outcomes[{at}].when"), each.is_)
        for at, each in enumerate(outcomes)
    )
