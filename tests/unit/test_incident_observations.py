"""Which causes the rows of a look show, and how the overview lists them."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from relay.api.incidents import lag_of_history
from relay.api.overview.resource import attention_of
from relay.domain.coordinate import Coordinate
from relay.domain.hold import Hold, HoldReason
from relay.domain.incident import Incident, IncidentSnapshot, Party, advance
from relay.domain.receiver import Endpoint
from relay.domain.urls import host_of
from relay.incidents.observations import (
    LAG_S,
    LETTERS_S,
    EndpointSeen,
    LetterGroup,
    Rows,
    groups_of,
    observations,
    text,
)
from relay.incidents.stuck import StuckLine
from relay.log.port import Backlog, TopicPartition
from relay.state.lanes import LaneNow
from relay.state.port import EndpointHealth, FailedEntry
from relay.state.read_model import UNSERVED_S, LastAttempt, Served, Waiting

NOW = 1_700_000_000.0
CI = Endpoint("https://ci.example:8443/hooks")
WELL = EndpointHealth("closed", 0.0, 0)
FAILING = EndpointHealth("closed", 0.0, 2, failing_for_s=60.0)


def lane(topic: str = "t-to_receiver_ci", partition: int = 0, *, seen_s: float | None = 1.0, end: int = 10) -> LaneNow:
    backlog = Backlog("t-relay.to-receiver", TopicPartition(topic, partition), 0, end, 4)
    return LaneNow(backlog, "to-receiver", "ci", None if seen_s is None else Served(ago_s=seen_s))


def endpoint(
    health: EndpointHealth = FAILING, *, status: int | None = None, failure: str | None = None, **fields: Any
) -> EndpointSeen:
    known = status is not None or failure is not None
    last = LastAttempt(NOW - 1, status, failure, 0.1) if known else None
    return EndpointSeen(fields.pop("owner", "r:ci"), CI, health, last, **fields)


def letter(reason: str, receiver: str = "ci", source: str = "shop", *, ago_s: float = 5.0) -> FailedEntry:
    return FailedEntry(receiver, Coordinate("failed", 0, int(ago_s)), NOW - ago_s, reason, source, "m-1")


def groups(*entries: FailedEntry, status: int | None = None, detail: str = "") -> list[LetterGroup]:
    return [replace(group, status=status, detail=detail) for group in groups_of(entries, NOW)]


def incidents(rows: Rows) -> list[Incident]:
    return list(advance({}, {}, IncidentSnapshot(NOW, observations(rows))).incidents.values())


def only(rows: Rows) -> Incident:
    [one] = incidents(rows)
    return one


def kinds(rows: Rows) -> list[str]:
    return [one.kind for one in observations(rows)]


def test_where_all_is_well_there_is_nothing() -> None:
    assert observations(Rows(NOW, [lane()], [endpoint(WELL, status=200)])) == []


# --- callbacks ----------------------------------------------------------------------------------------------------


def test_a_broken_callback_is_one_incident_of_its_source_whatever_receivers_the_results_are_of() -> None:
    letters = groups(*(letter("callback_rejected", f"r{n}", "billing", ago_s=n + 1) for n in range(6)), status=422)
    callback = endpoint(owner="s:billing", status=422, queued=4)
    one = only(Rows(NOW, endpoints=[callback], letters=letters))
    assert (one.kind, one.party) == ("callback", Party("source", "billing"))
    assert (one.waiting, one.facts.receivers_all, one.facts.letters) == (10, 6, 6)
    assert one.facts.host == "ci.example:8443"


@pytest.mark.parametrize("failure", ["tls", "dns", "blocked", "refused"])
def test_a_callback_that_cannot_be_called_is_the_same_kind(failure: str) -> None:
    one = only(Rows(NOW, endpoints=[endpoint(owner="s:billing", failure=failure)]))
    assert one.kind == "callback"
    assert one.facts.why


def test_a_callback_that_is_paused_by_a_person_is_another_matter() -> None:
    paused = EndpointHealth("closed", inf, 0, hold=Hold("paused", NOW - 60))
    one = only(Rows(NOW, endpoints=[endpoint(paused, owner="s:billing")]))
    assert (one.kind, one.opened_at) == ("paused", NOW - 60)


# --- receivers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "failure", "kind"),
    [
        (401, None, "credentials"),
        (403, None, "credentials"),
        (404, None, "wrong_url"),
        (302, None, "wrong_url"),
        (500, None, "failing"),
        (503, None, "failing"),
        (422, None, "failing"),
        (None, "blocked", "address_blocked"),
        (None, "tls", "tls"),
        (None, "dns", "dns"),
        (None, "refused", "failing"),
        (None, None, "failing"),
    ],
)
def test_the_latest_attempt_says_what_the_cause_is(status: int | None, failure: str | None, kind: str) -> None:
    assert kinds(Rows(NOW, endpoints=[endpoint(status=status, failure=failure)])) == [kind]


def test_an_attempt_that_was_not_even_sent_counts_although_the_receiver_is_well() -> None:
    assert kinds(Rows(NOW, endpoints=[endpoint(WELL, failure="blocked")])) == ["address_blocked"]
    long_ago = replace(endpoint(WELL, failure="blocked"), last=LastAttempt(NOW - 90_000, None, "blocked", 0.0))
    assert not observations(Rows(NOW, endpoints=[long_ago]))


def test_a_receiver_that_has_answered_since_is_well() -> None:
    assert not observations(Rows(NOW, endpoints=[endpoint(WELL, status=401)]))


def test_dead_letters_and_attempts_of_one_cause_are_one_incident() -> None:
    letters = groups(letter("exhausted"), letter("exhausted", ago_s=9), status=401)
    one = only(Rows(NOW, endpoints=[endpoint(status=401, queued=3)], letters=letters))
    assert (one.kind, one.waiting, one.opened_at) == ("credentials", 5, NOW - 60)


def test_while_the_latest_attempt_is_not_known_dead_letters_say_what_the_cause_is() -> None:
    letters = groups(letter("exhausted"), status=401)
    assert [one.kind for one in incidents(Rows(NOW, endpoints=[endpoint()], letters=letters))] == ["credentials"]


def test_the_breaker_is_a_part_of_the_sentence() -> None:
    opened = EndpointHealth("open", 0.0, 5, failing_for_s=30.0)
    assert only(Rows(NOW, endpoints=[endpoint(opened, status=500)])).facts.condition == "its circuit breaker is open"


@pytest.mark.parametrize("reason", ["gone", "disabled", "paused"])
def test_a_hold_is_the_cause(reason: HoldReason) -> None:
    held = EndpointHealth("closed", inf, 0, hold=Hold(reason, NOW - 60))
    one = only(Rows(NOW, endpoints=[endpoint(held)]))
    assert (one.kind, one.opened_at) == (reason, NOW - 60)


def test_an_unverified_receiver_waits_for_that() -> None:
    assert kinds(Rows(NOW, endpoints=[endpoint(WELL, verified=False)])) == ["unverified"]


# --- heads of lines -----------------------------------------------------------------------------------------------

STUCK = StuckLine("ci", "a/b", "m 1", 3, "attempt 4 did not succeed: 500")


def test_a_message_that_holds_up_others_is_the_cause_while_its_receiver_accepts_requests() -> None:
    for endpoints in ([], [endpoint(status=500)]):
        one = only(Rows(NOW, endpoints=endpoints, stuck=[STUCK]))
        assert (one.kind, one.scope, one.waiting, one.facts.message_id) == ("head_of_line", "a/b", 3, "m 1")


def test_where_a_receiver_accepts_nothing_its_heads_are_no_cause() -> None:
    opened = EndpointHealth("open", 0.0, 5, failing_for_s=30.0)
    for seen in (endpoint(opened, status=500), endpoint(status=503), endpoint(status=401), endpoint(failure="refused")):
        assert "head_of_line" not in kinds(Rows(NOW, endpoints=[seen], stuck=[STUCK]))


# --- dead letters -------------------------------------------------------------------------------------------------


def test_dead_letters_are_grouped_by_party_and_reason_and_old_ones_are_no_cause() -> None:
    entries = [
        letter("exhausted"),
        letter("exhausted", ago_s=50),
        letter("callback_rejected", "cd"),
        letter("invalid", "-"),
        letter("poison"),
        letter("discarded"),
        letter("gone", ago_s=LETTERS_S + 1),
    ]
    found = {(group.party.type, group.party.name, group.reason): group.letters for group in groups_of(entries, NOW)}
    assert found == {
        ("receiver", "ci", "exhausted"): 2,
        ("source", "shop", "callback_rejected"): 1,
        ("source", "shop", "invalid"): 1,
        ("relay", "poison", "poison"): 1,
    }


def test_a_group_knows_that_there_are_more() -> None:
    [group] = groups_of([letter("exhausted")], NOW, more=["ci"])
    assert only(Rows(NOW, letters=[group])).facts.letters_more


# --- the relay ----------------------------------------------------------------------------------------------------


def test_a_role_that_no_process_has_is_one_incident_for_all_its_topics() -> None:
    lanes = [lane(f"t-to_receiver_r{n}", seen_s=UNSERVED_S + 50 + n) for n in range(300)]
    one = only(Rows(NOW, lanes))
    assert (one.kind, one.party, one.waiting) == ("no_worker", Party("relay", "to-receiver"), 1800)
    assert one.opened_at == NOW - UNSERVED_S - 349


def test_records_that_were_deleted_or_will_be_are_an_incident_of_their_topic() -> None:
    gone = replace(lane(), backlog=lane().backlog._replace(first=7))
    assert only(Rows(NOW, [gone])).kind == "retention"
    old = replace(lane(), oldest_s=80_000.0)
    kept = {"t-to_receiver_ci": 86_400.0}
    assert "retention" in kinds(Rows(NOW, [old], retention_s=kept))


def test_a_lag_counts_if_nothing_else_explains_it() -> None:
    late = replace(lane(), oldest_s=LAG_S)
    assert only(Rows(NOW, [late])).party == Party("receiver", "ci")
    assert kinds(Rows(NOW, [late], [endpoint(status=500)])) == ["failing"]


def test_a_lane_of_many_is_not_late_for_itself_if_its_oldest_record_waits_for_an_endpoint_with_a_cause() -> None:
    backlog = Backlog("t-relay.to-sender", TopicPartition("t-to_sender", 0), 0, 10, 4)
    late = LaneNow(backlog, "to-sender", None, Served(ago_s=1.0), LAG_S, oldest=Waiting("s:shop", NOW - LAG_S))
    callback = endpoint(FAILING, owner="s:shop", status=404)
    assert kinds(Rows(NOW, [late], [callback])) == ["callback"]
    assert kinds(Rows(NOW, [replace(late, oldest=Waiting("s:other", NOW - LAG_S))], [callback])) == ["callback", "lag"]
    assert only(Rows(NOW, [late])).party == Party("relay", "to-sender")


def test_parts_that_are_away_and_entries_that_cannot_be_used_are_named() -> None:
    refused = {"ci": "CI_SECRET is not set", "source:shop": "SHOP is not set"}
    found = incidents(Rows(NOW, away={"log": "refused"}, refused=refused, warnings={"configuration": "2 entries"}))
    assert {(one.kind, *one.party) for one in found} == {
        ("store_away", "relay", "log"),
        ("configuration", "receiver", "ci"),
        ("configuration", "source", "shop"),
    }


def test_a_lane_whose_receiver_cannot_be_used_is_no_lack_of_workers() -> None:
    lanes = [lane(seen_s=None), lane("t-pending_from_receiver_ci", seen_s=None, end=5)]
    one = only(Rows(NOW, lanes, refused={"ci": "CI_SECRET is not set"}))
    assert (one.kind, one.party, one.waiting) == ("configuration", Party("receiver", "ci"), 7)
    served = only(Rows(NOW, [lane()], refused={"ci": "CI_SECRET is not set"}))
    assert (served.kind, served.waiting) == ("configuration", 0)
    assert kinds(Rows(NOW, lanes, refused={"other": "OTHER is not set"})) == ["no_worker", "configuration"]


def test_a_text_from_outside_is_bounded_and_steers_no_terminal() -> None:
    assert text("\x1b[2J" + "x" * 1_000).startswith("\\x1b[2J")
    assert len(text("x" * 1_000)) == 300


def test_a_host_is_shown_without_the_rest_of_its_url() -> None:
    assert host_of("https://user:secret@ci.example/a?token=1") == "ci.example"
    assert host_of("https://[::1") == ""


# --- the list of the overview -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "kind", "subject", "path"),
    [
        (Rows(NOW, letters=groups(letter("exhausted"), status=401)), "failed", "ci", "/v1/replays"),
        (Rows(NOW, endpoints=[endpoint(status=500)]), "failing", "ci", "/v1/receivers/ci/resume"),
        (
            Rows(NOW, endpoints=[endpoint(owner="s:a/b", status=500)]),
            "failing",
            "a/b/callback",
            "/v1/sources/a%2Fb/callback/resume",
        ),
        (Rows(NOW, endpoints=[endpoint(WELL, verified=False)]), "unverified", "ci", "/v1/receivers/ci/verify"),
        (Rows(NOW, stuck=[STUCK]), "held_up", "ci", "/v1/receivers/ci/test"),
    ],
)
def test_what_may_help_is_a_call_of_the_api(rows: Rows, kind: str, subject: str, path: str) -> None:
    one = only(rows)
    item = attention_of(one, NOW)
    assert (item["kind"], item["subject"], item["incident"]) == (kind, subject, one.id)
    assert item["action"] is not None
    assert item["action"]["path"] == path


def test_for_a_part_that_is_away_there_is_no_call() -> None:
    item = attention_of(only(Rows(NOW, away={"state": "refused"})), NOW)
    assert (item["kind"], item["severity"], item["action"], item["detail"]) == ("part_away", "error", None, "refused")


@pytest.mark.parametrize(("behind_s", "reported"), [(None, True), (59.0, False), (61.0, True)])
def test_a_history_that_lags_is_listed(behind_s: float | None, reported: bool) -> None:
    assert bool(lag_of_history({"behind_s": behind_s}, NOW)) == reported
    assert not lag_of_history(None, NOW)


def test_a_lag_that_is_unknown_does_not_blame_the_store_alone() -> None:
    """It is unknown while the log does not answer, too."""
    (one,) = lag_of_history({"behind_s": None}, NOW)
    assert one.facts.detail.endswith("its store or the log does not answer")
