"""Every route of the API, as /openapi.json describes it; the problems that it returns, and why deliveries fail."""

from itertools import groupby
from typing import Final

from relay.api import problems
from relay.api.access import OPEN
from relay.api.problem_advice import ADVICE
from relay.api.route import Route
from relay.api.routes import ROUTES
from relay.cli.reference.markdown import code, codes, described, table, titled
from relay.domain.advice import ENDINGS
from relay.domain.reasons import REASONS

ABOUT: Final = """\
A relay that runs has the same at `/docs`, with a call to copy for each, and for programs at `/openapi.json`
(OpenAPI 3.1), which `relay config openapi` prints without one. [http-api.md](../http-api.md) says how they are used
together, and [problems.md](problems.md) lists the reasons of rejections. Any request may return 400, 401, 403,
404, 405, 413, 415, 429, 500 and 503 as well; what is listed is a route's own."""
OF_REASONS: Final = """\
A delivery that is given up is a dead letter on the topic `failed_messages`, with the reason in `relay-reason` and
who has to act in `relay-reason-class`: the sender, the receiver, or who runs the relay (`system`; only these page a
person). `relay failed list` lists them, `relay_failed_total` counts them by receiver and reason. New reasons may be
added."""
OF_PROBLEMS: Final = """\
What the API refuses is answered with problem details (RFC 9457). `type` is `/problems/<name>`, a path of the API
that answers with the text below; go by `status` and `type`, never by the words. A failure notice to a sender names
these pages as well, by its [reason](reasons.md)."""


def page() -> str:
    operations = sorted(ROUTES.values(), key=lambda one: one.noun)
    groups = [(noun, list(some)) for noun, some in groupby(operations, lambda one: one.noun)]
    return titled("Routes", ABOUT, *("\n\n".join([f"## {noun}", *map(_section, some)]) for noun, some in groups))


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
    return "\n\n".join(part for part in parts if part)


def reasons() -> str:
    rows = [(code(reason), one.party, ENDINGS.get(reason, "")) for reason, one in REASONS.items()]
    return titled("Reasons", OF_REASONS, table(("reason", "who acts", "what to do"), rows))


def problems_page() -> str:
    found = {kind.name: kind for kind in vars(problems).values() if isinstance(kind, problems.ProblemKind)}
    ordered = sorted(found.values(), key=lambda kind: (kind.status, kind.name))
    rows = [(code(kind.name), str(kind.status), kind.title, ADVICE.get(kind.name, "")) for kind in ordered]
    return titled("Problems", OF_PROBLEMS, table(("type", "status", "title", "what to do"), rows))
