"""Every metric with its kind, labels and meaning, and the closed sets that labels come from."""

from collections.abc import Iterable
from typing import Final, get_args

from relay.cli.reference.markdown import code, codes, paragraphs, table
from relay.domain.reasons import REASONS
from relay.engine.work import WaitFor
from relay.state.attempts import Change, WaitReason
from relay.state.lanes import STAGES
from relay.telemetry.metrics import Metrics
from workers.dependencies import Via

_LEGS: Final = ("to_receiver", "answer", "to_sender")
_SAYS_NOTHING_OF_AN_ENDPOINT: Final = ("rate", "settling", "max_in_flight")


def page() -> str:
    return paragraphs(_metrics(), "## Values of labels", _values())


def _metrics() -> str:
    rows = [
        (code(family.name), family.kind, codes(family.label_names), family.meaning) for family in Metrics("").families
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


def _values() -> str:
    outcomes = ("done", "dead", *(change.value for change in (Change.RETRY, Change.DOUBT, Change.RELEASED)))
    whys = [why for why in get_args(WaitReason) if why not in _SAYS_NOTHING_OF_AN_ENDPOINT]
    attempts = ("relay_delivery_attempts_total", "relay_status_polls_total", "relay_callback_attempts_total")
    sets: list[tuple[str, tuple[str, ...], Iterable[str]]] = [
        ("outcome", attempts, outcomes),
        ("role", ("relay_consumer_lag", "relay_requests_in_flight", "relay_waiting_records"), STAGES),
        ("reason", ("relay_waiting_records",), get_args(WaitFor)),
        ("reason", ("relay_failed_total",), REASONS),
        ("why", ("relay_endpoints_held",), whys),
        ("via", ("relay_answers_total",), get_args(Via)),
        ("leg", ("relay_end_to_end_seconds",), _LEGS),
    ]
    return table(("label", "of", "values"), [(code(label), codes(of), codes(values)) for label, of, values in sets])
