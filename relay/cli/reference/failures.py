"""Why deliveries fail, and what the API refuses: both with what to do, as the API's own pages have it."""

from typing import Final

from relay.api import problems
from relay.api.problem_advice import ADVICE
from relay.cli.reference.markdown import code, table, titled
from relay.domain.advice import ENDINGS
from relay.domain.reasons import REASONS

OF_REASONS: Final = """\
A delivery that is given up is a dead letter on the topic `failed_messages`, with the reason in `relay-reason` and
who has to act in `relay-reason-class`: the sender, the receiver, or who runs the relay (`system`; only these page a
person). `relay failed list` lists them, `relay_failed_total` counts them by receiver and reason. New reasons may be
added."""
OF_PROBLEMS: Final = """\
What the API refuses is answered with problem details (RFC 9457). `type` is `/problems/<name>`, a path of the API
that answers with the text below; go by `status` and `type`, never by the words. A failure notice to a sender names
these pages as well, by its [reason](reasons.md)."""


def reasons() -> str:
    rows = [(code(reason), whose, ENDINGS.get(reason, "")) for reason, whose in REASONS.items()]
    return titled("Reasons", OF_REASONS, table(("reason", "who acts", "what to do"), rows))


def kinds() -> str:
    found = {kind.name: kind for kind in vars(problems).values() if isinstance(kind, problems.ProblemKind)}
    ordered = sorted(found.values(), key=lambda kind: (kind.status, kind.name))
    rows = [(code(kind.name), str(kind.status), kind.title, ADVICE.get(kind.name, "")) for kind in ordered]
    return titled("Problems", OF_PROBLEMS, table(("type", "status", "title", "what to do"), rows))
