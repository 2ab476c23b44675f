"""The texts of the portal, which a product may replace, as with those of another language: each is its own key.

A key with slots, as `Attempt {0}`, is a sentence with names or numbers: its text has the same slots."""

import json
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, get_args

from jinja2 import Environment, FileSystemLoader

from relay.api import problems
from relay.domain.advice import ERRORS, STATUSES, WAITS, of_callback, status_words
from relay.domain.errors import UserError
from relay.domain.incident_kinds import KINDS, LABELS, number
from relay.domain.outcome import CodeClass
from relay.domain.reasons import REASONS, reason_words
from relay.domain.state import BLOCKS, STATE_LABELS
from relay.domain.statistics import HEALTHS
from relay.pages.page import navigation_for
from relay.pages.receiver_form import COMMON, NAME, NEW_FIELDS
from relay.pages.translator import SLOT, TEMPLATES, Replacing
from relay.schema.receivers import Condition

_COUNTED: Final = ("attempt", "more attempt", "time", "message", "dead letter", "result", "status request")
_WORDS: Final = (
    *("now", "never", "none", "done", "retry", "doubt", "released", "dead", "post", "ping", "callback", "half open"),
    *("open", "closed", "acknowledged", "resolved", "paused", "gone", "disabled", "running", "stopped", "stopping"),
    *("counting", "sending", "refused", "deprecated", "dedicated", "shared", "pending", "verified", "not required"),
    *("replayed", "discarded", "cancelled", "status", "state", "warning", "ok", "default", "active", "working"),
)
"""Words of states, kinds and outcomes."""
SENTENCES: Final = (
    *("{0} ago", "in {0}", "{0} at {1}"),
    # the steps of a message
    *("Arrived", "acknowledged by the log", "Attempt {0}", "Attempts {0} to {1}", "Status check {0}"),
    *("Status checks {0} to {1}", "Callback {0}", "Callbacks {0} to {1}", "Ping {0}", "Pings {0} to {1}"),
    *("Answered: {0}", "Given up: {0}", "given up: {0}", "Waited to be sent", "The receiver was processing it"),
    *("Waited to try again", "On its way to the sender", "The result could not be returned to the sender", "Done"),
    *("The sender was notified of the failure", "Back at the sender", "no answer is expected"),
    *("kept for the sender, which has no callback", "the last one got {0}", "no content type", "without a body"),
    "the usual table",
    *(
        "Settings of {0}",
        "Resume {0}",
        "Verify {0}",
        "See the message ahead",
        "Source {0}",
        "Resume",
        "Verify",
        "Try now",
        "Replay",
    ),
    # the stations of a delivery
    *(
        "sent it",
        "not tried yet",
        "Answer",
        "Sender",
        "not yet",
        "still to come",
        "can fetch it",
        "accepted",
        "delivered",
    ),
    *("was notified of the failure", "has the answer", "no callback", "its callback refused it", "on its way back"),
    "callback tried {0}",
    *("it had to wait for a connection", "it had to wait for an access token"),
    # incidents
    *("no success", "since {0}", "{0} more", "{0} and {1} more", "its circuit breaker is {0}"),
    *("{0}'s callback has rejected every result {1}.", "{0}'s callback has rejected results {1}."),
    *("{0}'s callback has failed for every result {1}.", "{0}'s callback has failed for results {1}."),
    *("{0}'s callback at {1} has rejected every result {2}.", "{0}'s callback at {1} has rejected results {2}."),
    *("{0}'s callback at {1} has failed for every result {2}.", "{0}'s callback at {1} has failed for results {2}."),
    *(
        "{0} has rejected our credentials {1}.",
        "{0} has accepted no messages at its URL {1}.",
        "{0} has responded that it is gone {1}.",
    ),
    *("{0} has been switched off after a long outage {1}.", "{0} has failed {1}.", "{0} has rejected messages {1}."),
    *("{0} has not answered {1}.", "{0} has not kept up {1}.", "TLS with {0} has failed {1}."),
    *(
        "The relay has not been allowed to call {0}, the address of {1}, {2}.",
        "The host name {0} of {1} has not resolved {2}.",
    ),
    *("The settings of {0} have been unusable {1}.", "{0} has been paused {1}."),
    *("{0} has waited for the verification of its URL {1}.", "{0} has sent messages that fail ({1}) {2}."),
    *(
        "{0} wait.",
        "{0} waits.",
        "{0} can be replayed.",
        "{0}: {1} waits behind {2} of source {3} {4}.",
        "{0}: {1} wait behind {2} of source {3} {4}.",
        "{0}: none waits behind {1} of source {2} any more.",
    ),
    *("{0} is sent only pings", "The receiver {0} is not to blame.", "{0} receivers are not to blame."),
    "{0} receivers are not to blame: {1}.",
    # parts of pages
    *("See {0}", "by {0}", "anybody", "receiver {0}", "delivery {0}", "replay {0}", "created", "changed", "rotated"),
    *("removed", "tested", "resumed", "started"),
    *("{0} delivered", "{0} refused", "{0} to be retried"),
    *("Copied", "Remove", "{0} new", "{0} chosen"),
    *("{0} failed", "{0} in 24 h", "{0} of them failed", "of {0} a second", "of {0} in {1}", "no limit"),
    *("the last hour", "6 hours", "a day", "7 days", "30 days", "15 minutes", "Last hour", "24 hours", "All", "Any"),
    *(
        "Receiver {0}",
        "Copy {0}",
        "source",
        "message id",
        "webhook id",
        "Dark",
        "Light",
        "System",
        "{0}: home",
    ),
    *("- for none", "a-z, 0-9 and -. It cannot be changed later.", "{0} (of all receivers that share it)"),
    *("Paused", "Gone", "Disabled", "API", "file"),
    "What was not yet accepted by the receiver ends as a dead letter, unknown_receiver; for what it has accepted the "
    "answer is still waited for. Messages for it are refused from then on.",
    # notes after an action
    *("Done.", "Sent.", "Started.", "Verified.", "Resolved.", "Acknowledged.", "Nothing was changed.", "Stopping."),
    *("The copy is sent.", "The replay has started.", "Replay started.", "{0} is paused.", "{0} is resumed."),
    *(
        "{0} is registered.",
        "{0} is removed.",
        "{0} is disabled.",
        "{0} is enabled.",
        "Changed: {0}.",
        "Not verified: {0}",
    ),
    *("{0} delivery is on the way again.", "{0} deliveries are on the way again.", "{0} not: {1}"),
    *("Select some messages first.", "At most {0} deliveries at once. The page Failed replays any number."),
    *("{0}: done.", "Discarded.", "Cancelled.", "Sent once more.", "The result is sent again."),
)


def spoken() -> Iterator[str]:
    """All of them."""
    yield from SENTENCES
    yield from _WORDS
    for one in _COUNTED:
        yield from (one, f"{one}s", f"{{0}} {one}", f"{{0}} {one}s", f"{{0}} or more {one}s")
    yield from map(reason_words, (*REASONS, *ERRORS, *HEALTHS, *get_args(Condition), *get_args(CodeClass)))
    yield from (f"{reason_words(each)} by {{0}}" for each in get_args(CodeClass))
    yield from BLOCKS.values()
    causes = (*WAITS.values(), *ERRORS.values())
    advice = (*(each.advice for each in causes), *STATUSES.values(), *(each.advice for each in REASONS.values()))
    yield from (each.title for each in causes)
    yield from filter(None, (text.replace("`", "") for each in advice for text in (each, of_callback(each))))
    yield from (status_words(status) for status in HTTPStatus)
    yield from (kind.title for kind in vars(problems).values() if isinstance(kind, problems.ProblemKind))
    yield from LABELS.values()
    for row in KINDS.values():
        yield row.cause.replace("{why}", "{0}").replace("{status}", "")
        if "{status}" in row.cause:
            yield row.cause.replace("{status}", " ({0})")
    for count in range(2, 13):
        yield number(count).capitalize()


_OF_PORTAL: Final = re.compile(
    "(attempt|base|confirm|event_type|exchange|failed|incident|message|portal|problem|receiver|replay|ui).*"
)
"""Names of the templates that the portal has."""
_MOST_LISTED: Final = 3


def texts() -> list[str]:
    """All texts that can be replaced, in English, sorted."""
    labels = [text for label in STATE_LABELS.values() for text in (label.word, label.sentence)]
    fields = [text for field in (NAME, *COMMON, *NEW_FIELDS) for text in (field.label, field.hint) if text]
    found = {*(nav.label for nav in navigation_for({"owner"})), *labels, *fields, *spoken()}

    def collect(text: str) -> str:
        found.add(text)
        return text

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, extensions=[Replacing])
    environment.extend(replace=collect)
    for name in environment.list_templates(filter_func=lambda name: _OF_PORTAL.fullmatch(name) is not None):
        environment.parse((TEMPLATES / name).read_text())
    return sorted(found)


def read_strings(file: Path | None) -> Mapping[str, str]:
    """The texts of a product, by the English ones that they replace. Raises UserError."""
    if file is None:
        return {}
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise _refused(file, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refused(file, f"it is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) and text.strip() for text in found.values()):
        raise _refused(file, "it is not a JSON object of texts")
    if uneven := sorted(key for key, text in found.items() if set(SLOT.findall(key)) != set(SLOT.findall(text))):
        raise _refused(file, f"the text of {uneven[0]!r} has other slots, as {{0}}, than that")
    if unknown := sorted(set(found).difference(texts())):
        listed = ", ".join(repr(text[:60]) for text in unknown[:_MOST_LISTED])
        more = f" and {len(unknown) - _MOST_LISTED} more" if len(unknown) > _MOST_LISTED else ""
        raise _refused(file, f"the portal has no text {listed}{more}; `relay portal strings` prints all")
    return found


def _refused(file: Path, why: str) -> UserError:
    return UserError(f"RELAY_PORTAL_STRINGS ({file}): {why}")
