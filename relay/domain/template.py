"""Texts, URLs and JSON values with expressions in them, written `${{ ... }}`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from relay.domain.errors import ExpressionError
from relay.domain.expression import Expression, Variables, VariableScope, check_expression
from relay.domain.expression_values import Path
from relay.domain.headers import MOST_URL
from relay.domain.text import with_replaced
from relay.domain.urls import joined_url, path_fault, same_origin, shown

OPENING: Final = "${{"
_BRACES: Final = re.compile(r"""'(?:\\.|[^'\\]){0,2000}'|"(?:\\.|[^"\\]){0,2000}"|[{}]""", re.DOTALL)


def spans_of_expressions(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each `${{ ... }}` in `text`. One without an end is not among them."""
    start = text.find(OPENING)
    while start >= 0:
        end = _end(text, start + len(OPENING))
        if end is None:
            return
        yield start, end
        start = text.find(OPENING, end)


def has_expression(text: str) -> bool:
    return OPENING in text


def without_expressions(text: str) -> str:
    """`text` with each expression left out."""
    return with_replaced(text, spans_of_expressions(text), lambda _: "")


def _end(text: str, start: int) -> int | None:
    """Where the expression that begins at `start` is closed; braces and texts within it are skipped."""
    depth = 0
    for match in _BRACES.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}" and depth:
            depth -= 1
        elif match[0] == "}":
            return match.end() + 1 if text[match.end() : match.end() + 1] == "}" else None
    return None


@dataclass(frozen=True, slots=True)
class Template:
    """`pieces`: literal texts and expressions, in order."""

    pieces: tuple[str | Expression, ...]
    place: str = ""

    def value(self, variables: Variables) -> object:
        """The value of the only expression, in its own type; otherwise the text. Raises ExpressionError."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Expression):
            return self.pieces[0].evaluate(variables)
        return self.text(variables)

    def text(self, variables: Variables) -> str:
        """Raises ExpressionError."""
        return "".join(piece if isinstance(piece, str) else _text_of(piece, variables) for piece in self.pieces)

    @property
    def paths(self) -> Sequence[Path]:
        """As `Expression.paths`, of all expressions."""
        return [path for piece in self.pieces if isinstance(piece, Expression) for path in piece.paths]

    @property
    def origin(self) -> str | None:
        """The fixed origin of a URL; None if it begins with an expression."""
        first = self.pieces[0]
        return None if isinstance(first, Expression) else _origin(first)

    @property
    def is_constant(self) -> bool:
        return all(isinstance(piece, str) for piece in self.pieces)


def template(text: str, scope: VariableScope, place: str = "") -> Template:
    """Raises ValueError for an expression that is wrong or not closed, with the place in front; see
    `check_expression`."""
    try:
        return Template(tuple(_pieces(text, scope, place)), place)
    except ValueError as error:
        raise ValueError(f"{place}: {error}" if place else str(error)) from None


def _pieces(text: str, scope: VariableScope, place: str) -> Iterator[str | Expression]:
    end = 0
    for start, stop in spans_of_expressions(text):
        if start > end:
            yield text[end:start]
        inner = text[start + len(OPENING) : stop - 2]
        check_expression(inner, scope)
        yield Expression(inner, scope, place)
        end = stop
    if OPENING in text[end:]:
        raise ValueError("an expression ${{ ... is not closed; write }} after it")
    if end < len(text):
        yield text[end:]


def _text_of(expression: Expression, variables: Variables) -> str:
    value = expression.evaluate(variables)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value)
    kind = "null" if value is None else "a list" if isinstance(value, list) else "a mapping"
    raise ExpressionError(f"{expression.place}: `{expression.line}`: the result is {kind}, which is no text")


# --- trees --------------------------------------------------------------------------------------------------------

Tree = Template | tuple["Tree", ...] | Mapping[str, "Tree"] | int | float | bool | None
"""A JSON value with templates in place of texts."""


def tree(value: object, scope: VariableScope, place: str) -> Tree:
    """Raises ValueError as `template`."""
    if isinstance(value, str):
        return template(value, scope, place)
    if isinstance(value, Mapping):
        return {str(key): tree(inner, scope, f"{place}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tree(inner, scope, f"{place}[{at}]") for at, inner in enumerate(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"{place}: a {type(value).__name__} is no JSON value")


def value_of(made: Tree, variables: Variables) -> object:
    """Raises ExpressionError."""
    if isinstance(made, Template):
        return made.value(variables)
    if isinstance(made, Mapping):
        return {key: value_of(inner, variables) for key, inner in made.items()}
    if isinstance(made, tuple):
        return [value_of(inner, variables) for inner in made]
    return made


def paths_of(made: Tree) -> list[Path]:
    """The parts of variables that a tree needs."""
    return [path for each in templates_in(made) for path in each.paths]


def templates_in(made: Tree) -> Iterator[Template]:
    if isinstance(made, Template):
        yield made
    inner = made.values() if isinstance(made, Mapping) else made if isinstance(made, tuple) else ()
    for each in inner:
        yield from templates_in(each)


# --- URLs ---------------------------------------------------------------------------------------------------------


class UrlRefused(ExpressionError):
    """A URL with expressions came out as one that must not be requested; the message says why."""


class NoUrl(UrlRefused):
    """A URL that is an expression came out as an empty text."""


_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+[/?]")
_NOT_RELATIVE: Final = re.compile(r"//|[A-Za-z][A-Za-z0-9+.-]*:")


def check_url_template(made: Template, *, allows_leading: bool, allows_relative: bool = False) -> None:
    """Raises ValueError unless the host is fixed, or comes whole from a leading expression whose origin is checked.
    `allows_relative`: the host may also be that of the endpoint, to whose URL this one is relative."""
    first = made.pieces[0] if made.pieces else ""
    if isinstance(first, Expression):
        if not allows_leading:
            raise ValueError("begins with an expression: list the origins that it may lead to in allow_origins")
        return
    if made.is_constant:
        return
    if allows_relative and not _NOT_RELATIVE.match(first):
        return
    if not _ABSOLUTE.match(first):
        raise ValueError("an expression belongs after the host and its slash, or makes the whole URL")


def url_of(made: Template, variables: Variables, *, base: str, origins: Sequence[str]) -> str:
    """The URL of a template. A value is percent-encoded as one path segment or query value, but a leading expression
    is a URL itself. That, or the text before the first expression, may be relative to `base`. `origins`: those it may
    lead to, as URLs.

    Raises ExpressionError, which is UrlRefused for one that must not be requested.
    """
    parts: list[str] = []
    for at, piece in enumerate(made.pieces):
        if isinstance(piece, str):
            # with a character behind it, so that a final ? stays
            parts.append(urljoin(base, f"{piece}_")[:-1] if at == 0 else piece)
        elif at == 0:
            parts.append(_whole_url(_text_of(piece, variables), base, made.place))
        else:
            value = _text_of(piece, variables)
            parts.append(_encoded(value, "".join(parts), made.pieces[at + 1 :], made.place))
    url = "".join(parts)
    if len(url) > MOST_URL:
        raise UrlRefused(f"{made.place}: the URL has more than {MOST_URL} characters")
    if not any(same_origin(url, each) for each in origins):
        origin = shown(_origin(url), also="/")
        raise UrlRefused(f"{made.place}: {origin} is no origin that it may lead to; see allow_origins")
    return url


def _whole_url(value: str, base: str, place: str) -> str:
    if not value:
        raise NoUrl(f"{place}: '' is not a URL that can be requested")
    url = joined_url(base, value)
    if url is None:
        raise UrlRefused(f"{place}: {shown(value, also='/?')!r} is not a URL that can be requested")
    return url


def _encoded(value: str, before: str, after: Sequence[str | Expression], place: str) -> str:
    if "?" not in before:
        following = after[0] if after and isinstance(after[0], str) else ""
        segment = before.rpartition("/")[2] + value + re.split(r"[/?]", following, maxsplit=1)[0]
        fault = path_fault(value, segment) if value else "is empty"
        if fault is not None:
            raise UrlRefused(f"{place}: a part of the URL's path would be {shown(value)!r}, which {fault}")
    return quote(value, safe="")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
