"""Texts that code makes are replaced on a rendered page: sentences with their names and numbers, and no name."""

from functools import cache
from typing import cast

import pytest
from msgspec import convert

from relay.domain.advice import ERRORS, STATUSES, WAITS, status_words
from relay.domain.incident import Facts, Incident, Party
from relay.domain.incident_kinds import KINDS, action, cause, summary
from relay.domain.reasons import REASONS
from relay.pages.causes import group_advice
from relay.pages.round_trip import stations, trips_of
from relay.pages.translator import Translator
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageView
from tests.browser.told import BEGUN, at, attempt, delivery, message
from tests.pseudo import left_of, strings

WORDS = {
    "Attempt {0}": "Versuch {0}",
    "{0} attempts": "{0} Versuche",
    "delivered": "zugestellt",
    "Failed": "<Fehler>",
    "{0} waits behind {1}.": "Hinter {1} wartet {0}.",
    "A name": "Ein Name",
}


@cache
def pseudo() -> Translator:
    """Not made with the module: that parses all templates, in each process that collects tests."""
    return Translator(strings())


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>Attempt 2</p>", "<p>Versuch 2</p>"),
        ("<p> Attempt 2:\n delivered </p>", "<p> Versuch 2: zugestellt </p>"),
        ("<p>delivered, 2 attempts</p>", "<p>zugestellt, 2 Versuche</p>"),
        ("<p>a &amp; b waits behind &lt;x&gt;.</p>", "<p>Hinter &lt;x&gt; wartet a &amp; b.</p>"),
        ("<b>Failed</b>", "<b>&lt;Fehler&gt;</b>"),
        ('<i title="A name" class="Failed">x</i>', '<i title="Ein Name" class="Failed">x</i>'),
        ("<code>Failed</code><bdi>Failed</bdi>", "<code>Failed</code><bdi>Failed</bdi>"),
        ('<td translate="no"><td>Failed</td></td>Failed', '<td translate="no"><td>Failed</td></td>&lt;Fehler&gt;'),
        ('<input value="Failed"><br>Failed', '<input value="Failed"><br>&lt;Fehler&gt;'),
        ("It has Failed", "It has Failed"),
    ],
)
def test_texts_and_labels_are_replaced_and_data_is_not(html: str, expected: str) -> None:
    assert Translator(WORDS).html(html) == expected


def test_all_advice_can_be_replaced() -> None:
    causes = (*WAITS.values(), *ERRORS.values())
    advice = [*(each.advice for each in causes), *STATUSES.values(), *(each.advice for each in REASONS.values())]
    titles = [each.title for each in causes]
    groups = [group_advice(reason, status) for reason in REASONS for status in (None, 401, 422, 503)]
    for text in (*titles, *(each.replace("`", "") for each in advice), *groups):
        assert not left_of(pseudo().text(text)), text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [None, 422, 503])
def test_the_sentences_of_incidents_can_be_replaced(kind: str, status: int | None) -> None:
    """But for the detail of a failure, which is text of others."""
    why = "unknown receiver" if status is None else status_words(status)
    facts = Facts(
        status=status,
        why=why,
        host="h-1.example",
        condition="its circuit breaker is open",
        receivers=("r-1", "r-2"),
        receivers_all=2,
        letters=3,
        message_id="m-1",
        source_id="s-1",
        items=("i-1", "i-2"),
    )
    party = Party("source" if kind in ("callback", "invalid_messages") else "receiver", "r-1")
    if kind in ("no_worker", "store_away", "retention", "relay_fault", "warning", "lag", "configuration"):
        return  # of the operator alone
    one = Incident("inc_1", kind, party, "", BEGUN, BEGUN, waiting=3, facts=facts)  # type: ignore[arg-type]
    for text in (cause(one), summary(one, BEGUN + 60), action(one).label):
        assert not left_of(pseudo().text(text), "h-1.example"), pseudo().text(text)


def test_the_steps_of_a_message_can_be_replaced() -> None:
    tries = [
        attempt(1, 5, 503, outcome="retry"),
        attempt(2, 5, 202, attempt=2),
        attempt(3, 5, 202, kind="status", outcome="retry"),
        attempt(4, 5, 200, kind="status", attempt=2),
        attempt(5, 5, 500, kind="callback", outcome="retry"),
        attempt(6, 5, 200, kind="callback", attempt=2),
    ]
    statuses = ("arrived", "delivered_to_receiver", "failed", "response_received_from_receiver", "done")
    waits = [{"kind": kind, "since": at(1), "until": None, "detail": ""} for kind in WAITS]
    views = [delivery("r-1", status, reason="exhausted" if status == "failed" else None) for status in statuses]
    views += [delivery("r-1", "arrived", waiting_for=wait) for wait in waits]
    for each in views:
        view = convert(message(each), MessageView)
        [trip] = trips_of(view, cast(list[AttemptItem], [one | {"receiver": "r-1"} for one in tries]), BEGUN + 60)
        texts = [text for life in trip.lives for step in life.steps for text in (step.title, step.advice)]
        texts += [text for one in stations(trip.view, "s-1") for text in (one.name, one.state)]
        for text in texts:
            assert not left_of(pseudo().text(text), "application/json", "text/plain"), pseudo().text(text)
