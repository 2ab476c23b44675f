"""Expressions in CEL (Common Expression Language): compiled when an entry is read, and evaluated within bounds.

`VariableScope` lists the variables of each place. An evaluation gets copies of only the parts of a variable that its
expression names, so that a large payload costs nothing, and JSON values that CEL does not have (integers beyond 64
bits) become floating-point numbers.
"""

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from relay.domain.errors import ExpressionError
from relay.domain.expression_library import (
    MATCHES,
    MOST_CHARACTERS,
    MOST_RESULT,
    OWN_MATCHES,
    budget,
    environment,
    in_plain_words,
)
from relay.domain.expression_values import JSON_TYPES, Copier, Path, json_of, needed
from relay.domain.json_pointer import NOT_JSON
from relay.domain.pattern import StepBudget, TooManySteps, step_budget

MOST_COPIED: Final = 64 * 1024 * 1024
"""Bytes that the calls of an evaluation may copy, at most."""
MOST_ITERATIONS: Final = 10_000
"""Number of iterations after which CEL ends an evaluation."""
MOST_ITEMS: Final = 400_000
"""Values that the variables in loops may have, times the iterations."""
MOST_BUILT: Final = 5_000_000
"""Iterations times the length of a list that `map` or `filter` makes: each iteration copies what there is of it."""
MOST_WORK: Final = 400_000
"""Values that the evaluations for one request or response may read and make, about a microsecond each: meanwhile the
process does nothing else."""
work_budget: Final = StepBudget(MOST_WORK)
"""As `step_budget`: the evaluations within a context have one."""


@dataclass(frozen=True, slots=True)
class VariableScope:
    """The variables that expressions of one place may use."""

    name: str
    variables: tuple[str, ...]


_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"id", "source", "type", "time", "webhook_id", "headers"}),
    "delivery": frozenset({"receiver", "attempt", "answer_url", "outcome", "reason", "detail"}),
    "response": frozenset({"status", "headers", "body"}),
    "post": frozenset({"status", "headers", "body"}),
    "answer": frozenset({"status", "content_type", "body"}),
}
ROUTING: Final = VariableScope("keep", ("message", "payload"))
REQUEST: Final = VariableScope("request", ("message", "payload", "delivery", "keep"))
OUTCOME: Final = VariableScope("outcomes", ("message", "payload", "delivery", "keep", "response", "body"))
STATUS: Final = VariableScope(
    "status_steps", ("message", "payload", "delivery", "keep", "post", "response", "steps", "body")
)
CALLBACK: Final = VariableScope("callback", ("message", "delivery", "answer", "keep"))


class Document:
    """A JSON document that is decoded when an expression first needs it. `what`: its name in errors. `cut`: only its
    beginning, which is not its value even if it is JSON."""

    __slots__ = ("_content", "_decoded", "_source", "_what")

    def __init__(self, content: bytes, what: str = "the body", *, cut: bool = False) -> None:
        self._content = content
        self._source = b"" if cut else content.removeprefix(BOM_UTF8)
        self._what = f"{what}, which was cut," if cut else what
        self._decoded: list[object] = []

    def value(self) -> object:
        """Raises ExpressionError if it is not JSON."""
        if not self._decoded:
            try:
                self._decoded.append(msgspec.json.decode(self._source))
            except NOT_JSON:
                raise ExpressionError(f"{self._what} is not JSON") from None
        return self._decoded[0]

    def value_or_text(self) -> object:
        """The body's JSON, or else its text."""
        try:
            return self.value()
        except ExpressionError:
            return self._content.decode(errors="replace")


Variables = Mapping[str, object]
"""Values by the name of the variable; a `Document` is decoded on demand."""


@dataclass(frozen=True, slots=True)
class Expression:
    """`place`: where it is written, for errors."""

    text: str
    scope: VariableScope
    place: str = ""

    def evaluate(self, variables: Variables) -> object:
        """The result, in the types of JSON. Raises ExpressionError."""
        compiled = _compiled(self.text, self.scope)
        try:
            return compiled.evaluate(variables)
        except ExpressionError as error:
            raise ExpressionError(f"{self.place or self.scope.name}: `{self.line}`: {error}") from None

    def is_true(self, variables: Variables) -> bool:
        """Raises ExpressionError, also for a result that is neither true nor false."""
        result = self.evaluate(variables)
        if not isinstance(result, bool):
            raise ExpressionError(f"{self.place}: `{self.line}`: the result is neither true nor false")
        return result

    @property
    def line(self) -> str:
        """It in one line, for errors."""
        return " ".join(self.text.split())

    @property
    def paths(self) -> Sequence[Path]:
        """The parts of variables that it names, each with the variable's name first."""
        return _compiled(self.text, self.scope).uses.paths


def check_expression(text: str, scope: VariableScope, *, condition: bool = False) -> None:
    """Raises ValueError with line and column unless `text` can be evaluated in `scope`. `condition`: the result has to
    be true or false."""
    if text.lstrip().startswith("${{"):
        raise ValueError("this field is an expression; write it without ${{ and }}")
    found = _compiled(text, scope)
    if condition and found.gives not in ("BOOL", "DYN"):
        raise ValueError(f"the result is {found.gives.lower()}, not true or false")
    if found.gives not in JSON_TYPES and not found.gives.startswith(("LIST", "MAP")):
        raise ValueError(f"the result is {found.gives.lower()}, which JSON does not have")


# --- compiled -----------------------------------------------------------------------------------------------------

_NO_VALUE: Final = re.compile(r'No value with name "(\w{1,40})"')
_LINE: Final = re.compile(r"ERROR: <input>:(-?\d{1,9}):(-?\d{1,9}): ([^\n]{0,500})")
_TOKEN: Final = re.compile(
    r"""
    (?P<text>[rRbB]{0,2}(?:\"{3}.{0,2000}?\"{3}|'{3}.{0,2000}?'{3}
        |"(?:\\.|[^"\\\n]){0,2000}"|'(?:\\.|[^'\\\n]){0,2000}'))
    | (?P<comment>//[^\n]{0,2000})
    | (?P<chain>[A-Za-z_]\w{0,2000}(?:\s{0,2000}\.\s{0,2000}[A-Za-z_]\w{0,2000}|\[\d{1,6}\]){0,2000})
      (?P<call>\s{0,2000}\()?
    | (?P<plus>\+)
    | \.\s{0,2000}(?P<method>[A-Za-z_]\w{0,2000})\s{0,2000}\(
    | (?P<parenthesis>[()])
    """,
    re.VERBOSE | re.DOTALL,
)
"""The bounds are those of an expression."""
_STEP: Final = re.compile(r"[A-Za-z_]\w*|\d+")
_BUILDERS: Final = frozenset({"map", "filter"})
_MACROS: Final = frozenset({"map", "filter", "all", "exists", "exists_one", "existsOne", "optMap", "optFlatMap"})
_CHEAP: Final = frozenset({"has", "size"})


class _Uses(NamedTuple):
    """What an expression uses. `copies`: calls and operators that may copy, or read all of, their operands. `loops`:
    macros, of which `nested` may be inside each other. `builds`: some make lists. `repeated`: how often each variable
    may be read in every iteration."""

    paths: tuple[Path, ...]
    copies: int
    loops: int
    nested: int
    builds: bool
    repeated: Mapping[str, int]


class _Compiled:
    """`gives`: name of the result's type."""

    __slots__ = ("_needs", "_program", "gives", "uses")

    def __init__(self, text: str, scope: VariableScope) -> None:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"an expression has at most {MOST_CHARACTERS} characters; this one has {len(text)}")
        text.encode()  # raises ValueError for lone surrogates, which YAML can escape
        try:
            self._program = environment(scope.variables).compile(_with_own_functions(text))
        except RuntimeError as error:
            raise ValueError(_fault(str(error), scope)) from None
        self.uses = _uses(text, scope)
        self.gives = self._program.return_type().name()
        named = ((name, needed(self.uses.paths, name)) for name in scope.variables)
        self._needs = [(name, parts) for name, parts in named if parts is not False]

    def evaluate(self, variables: Variables) -> object:
        try:
            with work_budget, step_budget:
                return self._evaluated(variables)
        except TooManySteps:
            raise ExpressionError("the values are too large for so many expressions") from None

    def _evaluated(self, variables: Variables) -> object:
        copies = {name: Copier() for name, _ in self._needs}
        data: dict[str, object] = {}
        missing: dict[str, ExpressionError] = {}  # it matters only if the evaluation reaches the variable
        for name, parts in self._needs:
            try:
                data[name] = copies[name].of(_value(name, variables), parts)
            except ExpressionError as error:
                missing[name] = error
        self._check_work(copies)
        budget.left, room = MOST_RESULT, [MOST_RESULT]
        try:
            return json_of(self._program.eval(data=data), room)
        except ExpressionError as error:
            absent = _NO_VALUE.search(str(error))
            raise (missing.get(absent[1]) if absent is not None else None) or error from None
        except (MemoryError, RecursionError, RuntimeError) as error:
            raise ExpressionError(in_plain_words(str(error))) from None
        finally:
            work_budget.spend((2 * MOST_RESULT - budget.left - room[0]) // 16)

    def _check_work(self, copied: Mapping[str, "Copier"]) -> None:
        """CEL bounds the iterations, but neither the bytes that a call copies nor the items that a variable in a loop
        costs each time."""
        _, copies, loops, nested, builds, repeated = self.uses
        work_budget.spend(sum(each.items + each.passed // 4 for each in copied.values()))
        if not copied or not (copies or loops):
            return
        most = max(each.most for each in copied.values())
        iterations = min(MOST_ITERATIONS, max(1, loops) * most**nested)
        items = sum(each.items * repeated.get(name, 0) for name, each in copied.items()) if loops else 0
        if copies**2 * iterations * max(each.longest for each in copied.values()) > MOST_COPIED:
            raise ExpressionError("the values are too large for it")
        if iterations * items > MOST_ITEMS:
            raise ExpressionError("the values are too large for its loops")
        if builds:
            if iterations * most > MOST_BUILT:
                raise ExpressionError("the lists are too long for map and filter")
            work_budget.spend(iterations * most // 32)


_compiled: Final = lru_cache(maxsize=4_096)(_Compiled)


def _value(name: str, variables: Variables) -> object:
    if name not in variables:
        raise ExpressionError(f"there is no {name} yet")
    value = variables[name]
    return value.value() if isinstance(value, Document) else value


def _with_own_functions(text: str) -> str:
    """`text` with our own name, of the same length, for each call of `matches`. A call that is not found here is one of
    a function that the compiler does not know."""
    for match in _TOKEN.finditer(text):
        name = "method" if match["method"] else "chain" if match["call"] else ""
        if name and _STEP.findall(match[name])[-1] == MATCHES:
            start = match.start(name) + match[name].rindex(MATCHES)
            text = f"{text[:start]}{OWN_MATCHES}{text[start + len(MATCHES) :]}"
    return text


def _uses(text: str, scope: VariableScope) -> _Uses:
    """A field with the name of a variable only adds to the paths, which does no harm. A path ends before a method, and
    before anything that is not a plain name or number."""
    paths: list[Path] = []
    repeated: Counter[str] = Counter()
    copies = loops = nested = 0
    builds = False
    inside: list[bool] = []  # for each open parenthesis, whether it is a macro's
    for match in _TOKEN.finditer(text):
        steps: list[str | int] = [int(one) if one.isdigit() else one for one in _STEP.findall(match["chain"] or "")]
        called = match["method"] or (steps.pop() if match["call"] else None)
        if steps and steps[0] in scope.variables:
            _check_field(steps, text, match.start())
            paths.append(tuple(steps))
            repeated[str(steps[0])] += any(inside)
        loops += called in _MACROS
        builds = builds or called in _BUILDERS
        copies += match["plus"] is not None or (called is not None and called not in _MACROS | _CHEAP)
        if called is not None or match["parenthesis"] == "(":
            inside.append(called in _MACROS)
            nested = max(nested, sum(inside))
        elif match["parenthesis"] and inside:
            inside.pop()
    # a call may make a list that is longer than those of the values: loops one after another then count as nested
    return _Uses(tuple(paths), copies, loops, loops if copies else nested, builds, repeated)


def _check_field(steps: Sequence[str | int], text: str, start: int) -> None:
    known = _FIELDS.get(str(steps[0]))
    if known is None or len(steps) < 2 or steps[1] in known:
        return
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    raise ValueError(
        f"line {line}, column {column}: {steps[0]} has no field {steps[1]!r}; it has {', '.join(sorted(known))}"
    )


def _fault(said: str, scope: VariableScope) -> str:
    """The first error of the compiler, for a user."""
    match = _LINE.search(said.replace(OWN_MATCHES, MATCHES))
    if match is None:
        return in_plain_words(said)
    line, column, text = int(match[1]), int(match[2]), match[3].removesuffix(" [INVALID_ARGUMENT]")
    text = text.replace(" (in container '')", "")
    if text.startswith("undeclared reference"):
        text += f"; known variables: {', '.join(scope.variables)}"
    return f"line {line}, column {column}: {text}" if line > 0 else text
