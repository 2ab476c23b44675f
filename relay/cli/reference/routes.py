"""Every route of the API, as /openapi.json describes it; the problems that it returns, and why deliveries fail."""

from itertools import groupby

from relay.api import problems
from relay.api.access import OPEN
from relay.api.problem_advice import ADVICE
from relay.api.route import Route
from relay.api.routes import ROUTES
from relay.cli.reference.markdown import code, codes, described, paragraphs, table
from relay.domain.advice import ENDINGS
from relay.domain.reasons import REASONS


def page() -> str:
    operations = sorted(ROUTES.values(), key=lambda one: one.noun)
    groups = [(noun, list(some)) for noun, some in groupby(operations, lambda one: one.noun)]
    return paragraphs(*(paragraphs(f"## {noun}", *map(_section, some)) for noun, some in groups))


def _section(operation: Route) -> str:
    need = operation.scope
    scopes = "" if need is OPEN else f"Takes a key with {codes((*need.scopes, 'admin'))}."
    audited = "" if operation.verb is None else f"Audited as {code(operation.verb)}."
    parts = [
        f"### {operation.method} {operation.path}",
        described(f"{operation.summary}. {operation.description}"),
        " ".join(filter(None, (scopes, audited))),
    ]
    if operation.parameters:
        rows = [
            (code(one.name), one.place + (", required" if one.place == "path" else ""), one.description)
            for one in operation.parameters
        ]
        parts.append(table(("parameter", "in", "what it is"), rows))
    answers = [(str(answer.status), answer.description) for answer in operation.answers]
    answers += [(str(kind.status), f"{code(kind.name)}: {kind.title}") for kind in operation.problems]
    parts.append(table(("status", "when"), sorted(answers)))
    return paragraphs(*parts)


def reasons() -> str:
    rows = [(code(reason), one.party, ENDINGS.get(reason, "")) for reason, one in REASONS.items()]
    return table(("reason", "who acts", "what to do"), rows)


def problems_page() -> str:
    found = {kind.name: kind for kind in vars(problems).values() if isinstance(kind, problems.ProblemKind)}
    ordered = sorted(found.values(), key=lambda kind: (kind.status, kind.name))
    rows = [(code(kind.name), str(kind.status), kind.title, ADVICE.get(kind.name, "")) for kind in ordered]
    return table(("type", "status", "title", "what to do"), rows)
