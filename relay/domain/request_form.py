"""Requests in a receiver's own form: method, URL, query, headers and body with expressions (`request` in
receivers.yaml)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from relay.domain.errors import ExpressionError
from relay.domain.expression import Variables, work_budget
from relay.domain.expression_values import Path
from relay.domain.headers import MOST_HEADER, MOST_URL, check_header_value
from relay.domain.template import Template, Tree, UrlRefused, paths_of, templates_in, url_of, value_of

Method = Literal["POST", "PUT", "PATCH"]
BodyKind = Literal["json", "form", "text"]
_CONTENT_TYPES: Final[dict[BodyKind, str]] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "text": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class RequestForm:
    """`url` None: the endpoint's own. `body_kind` None: the record's own bytes."""

    method: Method = "POST"
    url: Template | None = None
    query: tuple[tuple[str, Template], ...] = ()
    headers: tuple[tuple[str, Template], ...] = ()
    body_kind: BodyKind | None = None
    body: Tree = None

    @property
    def paths(self) -> list[Path]:
        """The parts of variables that its expressions need."""
        texts = [made for _, made in (*self.query, *self.headers)]
        return [path for made in (self.url, *texts, self.body) for path in paths_of(made)]


@dataclass(frozen=True, slots=True)
class FilledRequest:
    """A request form with values. `body`, `content_type` None: those of the record. `headers`: without the content
    type."""

    method: Method
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    content_type: str | None


def fill_request(form: RequestForm, variables: Variables, *, url: str, origins: Sequence[str]) -> FilledRequest:
    """`url`: the endpoint's own; `origins`: those to which another one may lead. Raises ExpressionError."""
    with work_budget:
        return _filled(form, variables, url=url, origins=origins)


def _filled(form: RequestForm, variables: Variables, *, url: str, origins: Sequence[str]) -> FilledRequest:
    if form.url is not None:
        url = url_of(form.url, variables, base=url, origins=origins)
    query = "&".join(f"{quote(name, safe='')}={quote(made.text(variables), safe='')}" for name, made in form.query)
    if query:
        url += ("&" if "?" in url else "?") + query
    if len(url) > MOST_URL:
        raise UrlRefused(f"request.query: the URL has more than {MOST_URL} characters")
    headers, content_type = [], None if form.body_kind is None else _CONTENT_TYPES[form.body_kind]
    for name, made in form.headers:
        value = _header(made, variables)
        if name.lower() == "content-type":
            content_type = value
        else:
            headers.append((name, value))
    return FilledRequest(form.method, url, tuple(headers), _body(form, variables), content_type)


def errors_in(form: RequestForm, variables: Variables) -> Iterator[ExpressionError]:
    """Every error of its expressions, where `fill_request` ends at the first one."""
    texts = [made for _, made in (*form.query, *form.headers)] + ([] if form.url is None else [form.url])
    for made in texts:
        yield from _error_of(made.text, variables)
    for made in templates_in(form.body):
        yield from _error_of(made.value if form.body_kind == "json" else made.text, variables)


def _error_of(make: Callable[[Variables], object], variables: Variables) -> Iterator[ExpressionError]:
    try:
        make(variables)
    except ExpressionError as error:
        yield error


def _header(made: Template, variables: Variables) -> str:
    value = made.text(variables)
    try:
        if len(value) > MOST_HEADER:
            raise ValueError(f"has more than {MOST_HEADER} characters")
        return check_header_value(value)
    except ValueError as error:
        raise ExpressionError(f"{made.place}: the value cannot be a header: {error}") from None


def _body(form: RequestForm, variables: Variables) -> bytes | None:
    match form.body_kind:
        case None:
            return None
        case "json":
            return msgspec.json.encode(value_of(form.body, variables))
        case "text":
            return _text(form.body, variables).encode(errors="replace")
        case "form":
            return urlencode(_pairs(form.body, variables), errors="replace").encode()


def _pairs(body: Tree, variables: Variables) -> list[tuple[str, str]]:
    if not isinstance(body, dict):
        raise AssertionError("a form is a mapping")
    return [
        (name, _text(each, variables))
        for name, made in body.items()
        for each in (made if isinstance(made, tuple) else (made,))
    ]


def _text(made: Tree, variables: Variables) -> str:
    if isinstance(made, Template):
        return made.text(variables)
    return "true" if made is True else "false" if made is False else str(made)
