"""Incidents: what opens one, what merges, resolves and reopens it, how many there are, and what its sentence says."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.cli.incidents import replayed
from relay.domain.incident import (
    HOLD_S,
    KEPT_S,
    MOST,
    REOPEN_S,
    URGENCY,
    Advance,
    Facts,
    Incident,
    IncidentSnapshot,
    Kind,
    Marks,
    Observation,
    Party,
    PersonMark,
    acknowledgement,
    advance,
    has_lasted,
    incident_id,
    is_listed,
    new_incident,
    resolution,
    state_of,
)
from relay.domain.incident_kinds import (
    KINDS,
    PATIENCE_S,
    action,
    cause,
    failure_in,
    kind_of_letter,
    party_of_letter,
    replay_selection,
    summary,
)
from relay.domain.reasons import REASONS
from relay.domain.replay_job import JobState
from relay.schema.replays import JobView

NOW = 1_700_000_000.0
CI = Party("receiver", "ci")


def seen(kind: Kind = "credentials", party: Party = CI, *, last: float = NOW, **fields: object) -> Observation:
    return replace(Observation(kind, party, last), **fields)  # type: ignore[arg-type]


class Life:
    """Incidents from look to look."""

    def __init__(self) -> None:
        self.now = NOW
        self.incidents: dict[str, Incident] = {}
        self.marks: dict[str, Marks] = {}

    def look(self, *observed: Observation, after_s: float = 1.0, unseen: tuple[Kind, ...] = ()) -> Advance:
        self.now += after_s
        found = advance(self.incidents, self.marks, IncidentSnapshot(self.now, observed, unseen, PATIENCE_S))
        self.incidents = dict(found.incidents)
        return found

    def failing(self, kind: Kind = "credentials", *, after_s: float = 1.0) -> Advance:
        return self.look(seen(kind, last=self.now + after_s), after_s=after_s)

    @property
    def only(self) -> Incident:
        [one] = self.incidents.values()
        return one

    def state(self) -> str:
        return state_of(self.only, self.marks.get(self.only.id, Marks()))


@pytest.fixture
def life() -> Life:
    return Life()


# --- the life of an incident --------------------------------------------------------------------------------------


def test_it_opens_with_the_first_failure_and_is_published_once(life: Life) -> None:
    assert [one.id for one in life.failing().opened] == [incident_id(CI, "credentials")]
    assert life.state() == "open"
    assert not life.failing().opened
    assert len(life.incidents) == 1


def test_it_resolves_once_success_has_held(life: Life) -> None:
    life.failing()
    assert not life.look().resolved
    assert not life.look(after_s=HOLD_S - 2).resolved
    assert life.state() == "open"
    [over] = life.look(after_s=2).resolved
    assert (over.resolved_by, over.resolved_at) == (None, life.now)
    assert life.state() == "resolved"
    assert not life.look().resolved


def test_a_receiver_that_flaps_each_second_is_one_open_incident() -> None:
    life, published = Life(), 0
    for second in range(600):
        found = life.failing() if second % 2 else life.look()
        published += len(found.opened) + len(found.resolved)
    assert (len(life.incidents), published, life.state()) == (1, 1, "open")


def test_a_receiver_that_flaps_slowly_is_published_less_and_less() -> None:
    life, published = Life(), list[float]()
    for _ in range(60):
        published += [life.now for found in (life.failing(after_s=60), life.look(after_s=60)) for _ in found.opened]
        published += [life.now for _ in life.look(after_s=60).opened]
    assert len(life.incidents) == 1
    assert len(published) <= 5


def test_what_comes_back_soon_is_the_same_occurrence_and_later_a_new_one(life: Life) -> None:
    life.failing()
    opened_at, id = life.only.opened_at, life.only.id
    life.look()
    life.look(after_s=HOLD_S)
    [again] = life.failing(after_s=60).opened
    assert (again.id, again.opened_at, again.reopened) == (id, opened_at, 1)
    life.look()
    life.look(after_s=2 * HOLD_S)
    assert life.state() == "resolved"
    [later] = life.failing(after_s=REOPEN_S + 1).opened
    assert (later.id, later.opened_at, later.reopened) == (id, life.now, 0)


def test_what_the_next_receiver_of_a_name_does_is_another_occurrence(life: Life) -> None:
    life.look(seen(life="1", facts=Facts(detail="of the former one"), count=9))
    life.look()
    assert life.only.life == "1"
    [anew] = life.look(seen(life="2", last=NOW + 1)).opened
    assert (anew.life, anew.opened_at, anew.count, anew.facts, anew.reopened) == ("2", life.now, 1, Facts(), 0)


def test_an_occurrence_of_an_earlier_release_goes_on(life: Life) -> None:
    life.look(seen())
    opened_at = life.only.opened_at
    assert not life.look(seen(life="1")).opened
    assert (life.only.life, life.only.opened_at) == ("1", opened_at)


def test_an_occurrence_begins_when_its_failures_did() -> None:
    assert new_incident(seen(since=NOW - 500.0), NOW).opened_at == NOW - 500
    assert new_incident(seen(since=NOW + 500.0), NOW).opened_at == NOW
    assert new_incident(seen(), NOW).opened_at == NOW


def test_its_opening_is_published_only_if_it_lasts(life: Life) -> None:
    assert not life.look(seen("no_worker", Party("relay", "to-receiver"))).opened
    assert not has_lasted(life.only, IncidentSnapshot(life.now, ()))
    found = life.look(seen("no_worker", Party("relay", "to-receiver")), after_s=PATIENCE_S["no_worker"])
    assert [one.kind for one in found.opened] == ["no_worker"]


def test_what_does_not_last_is_not_listed_and_can_be_read() -> None:
    life, observed = Life(), seen("no_worker", Party("relay", "to-receiver"))
    life.look(observed)
    life.look()  # a process has just started
    assert (life.only.unlisted, life.state(), is_listed(life.only, IncidentSnapshot(life.now, ()))) == (
        True,
        "resolved",
        False,
    )
    life.look(observed, after_s=100.0)
    assert (life.only.unlisted, life.only.opened_at, life.only.reopened) == (False, life.now, 0)


@pytest.mark.parametrize("kind", ["head_of_line", "failing", "configuration", "store_away"])
def test_what_is_stored_is_listed_also_by_a_process_whose_look_is_older(kind: Kind) -> None:
    stored = new_incident(seen(kind), NOW + 0.8)
    assert is_listed(stored, IncidentSnapshot(NOW, ()))


def test_a_cause_that_was_absent_before_it_lasted_is_not_published(life: Life) -> None:
    life.look(seen("failing"))
    assert not life.look(after_s=PATIENCE_S["failing"]).opened
    assert [one.kind for one in life.look(seen("failing")).opened] == ["failing"]


def test_what_could_not_be_looked_at_stays_as_it_is(life: Life) -> None:
    life.failing()
    before = life.only
    life.look(after_s=HOLD_S, unseen=("credentials",))
    assert life.only == before


# --- merging ------------------------------------------------------------------------------------------------------


def test_observations_of_one_cause_are_one_incident(life: Life) -> None:
    letters = [
        seen(waiting=3, count=3, facts=Facts(letters=3, reasons=("exhausted",), why="401 Unauthorized")),
        seen(waiting=2, count=2, facts=Facts(letters=2, reasons=("expired",))),
    ]
    life.look(seen(waiting=5, facts=Facts(host="ci.example")), *letters)
    facts = life.only.facts
    assert (life.only.waiting, facts.letters, facts.reasons) == (10, 5, ("exhausted", "expired"))
    assert (facts.host, facts.why) == ("ci.example", "401 Unauthorized")


def test_a_better_known_cause_takes_the_place_of_a_failing_receiver(life: Life) -> None:
    assert not life.look(seen("failing")).opened
    found = life.look(seen("credentials"))
    assert [one.kind for one in found.opened] == ["credentials"]
    assert not found.resolved
    failing = life.incidents[incident_id(CI, "failing")]
    assert (failing.unlisted, failing.merged_into) == (True, incident_id(CI, "credentials"))


def test_a_published_cause_that_is_better_known_now_is_resolved_at_once(life: Life) -> None:
    life.look(seen("head_of_line", scope="shop"))
    found = life.look(seen("credentials", merges=("head_of_line",)))
    [over] = found.resolved
    assert (over.kind, over.merged_into) == ("head_of_line", incident_id(CI, "credentials"))
    [again] = life.look(seen("head_of_line", scope="shop", last=life.now + 1)).opened
    assert (again.id, again.merged_into) == (over.id, None)


def test_a_line_that_seems_to_move_between_two_attempts_is_still_stuck(life: Life) -> None:
    life.look(seen("head_of_line", scope="shop", waiting=3))
    life.look(seen("failing"))
    assert (life.only.kind, life.only.waiting, life.only.cleared_at) == ("head_of_line", 3, None)
    life.look(seen("failing"), seen("wrong_url"))
    assert life.only.waiting == 3, "it would double with each look, until no integer holds it"
    life.look(seen("failing", facts=Facts(condition="its circuit breaker is open"), merges=("head_of_line",)))
    assert {one.kind: one.resolved_at is None for one in life.incidents.values()} == {
        "head_of_line": False,
        "failing": True,
    }


# --- people -------------------------------------------------------------------------------------------------------


def test_the_first_who_acknowledges_counts_for_this_occurrence(life: Life) -> None:
    life.failing()
    life.marks[life.only.id] = Marks(PersonMark(life.only.opened_at + 2, "key:a", NOW))
    assert life.state() == "acknowledged"
    life.look()
    life.look(after_s=HOLD_S)
    life.failing()
    assert life.state() == "acknowledged"  # it came back at once
    life.look()
    life.look(after_s=2 * HOLD_S)
    life.failing(after_s=REOPEN_S + 1)
    assert life.state() == "open"
    assert acknowledgement(life.only, life.marks[life.only.id]) is None


def test_resolved_by_hand_it_stays_so_until_it_is_observed_again(life: Life) -> None:
    observed = seen(last=NOW + 1, facts=Facts(letters=3))
    life.look(observed)
    life.marks[life.only.id] = Marks(resolved=PersonMark(life.only.opened_at, "key:a", NOW + 5))
    assert life.state() == "resolved"
    [over] = life.look(observed).resolved  # its dead letters are still there
    assert (over.resolved_by, over.resolved_at) == ("key:a", NOW + 5)
    assert not life.look(observed).resolved
    assert life.look(seen(last=NOW + 60), after_s=60).opened
    assert life.state() == "open"
    assert resolution(life.only, life.marks[life.only.id]) is None


# --- bounds -------------------------------------------------------------------------------------------------------


def of(number: int, kind: Kind = "credentials") -> Observation:
    return seen(kind, Party("receiver", f"r{number}"))


def test_a_thousand_at_once_are_kept_and_the_least_urgent_are_counted(life: Life) -> None:
    found = life.look(*(of(n, "rejected") for n in range(MOST)), of(-1, "credentials"))
    assert (len(found.incidents), found.left_out) == (MOST, 1)
    assert incident_id(Party("receiver", "r-1"), "credentials") in found.incidents
    assert len(found.opened) == MOST


def test_the_oldest_resolved_ones_go_first(life: Life) -> None:
    life.look(*(of(n) for n in range(10)))
    life.look()
    life.look(after_s=HOLD_S)
    life.look(*(of(n) for n in range(100, 100 + MOST - 5)))
    assert sum(one.resolved_at is not None for one in life.incidents.values()) == 5
    life.look(*(of(n) for n in range(100, 100 + MOST - 5)), after_s=KEPT_S)
    assert all(one.resolved_at is None for one in life.incidents.values())


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(URGENCY))), max_size=30))
def test_whatever_is_observed_each_opening_is_published_before_its_end(looks: list[list[tuple[int, Kind]]]) -> None:
    life, alive = Life(), set[str]()
    for observed in looks:
        found = life.look(*(replace(of(*one), last=life.now + 20) for one in observed), after_s=20)
        for one in found.resolved:
            alive.remove(one.id)
        for one in found.opened:
            assert one.id not in alive
            alive.add(one.id)
        assert len(found.incidents) <= MOST


# --- the table of kinds -------------------------------------------------------------------------------------------

FACTS = Facts(
    host="hooks.example",
    why="422 Unprocessable Content",
    detail="POST https://hooks.example/x: 422",
    status=422,
    receivers=("a", "b", "c", "d", "e"),
    receivers_all=5,
    reasons=("callback_rejected",),
    letters=187,
    source_id="shop",
    message_id="m-1",
    every=True,
    items=("to_receiver_ci",),
)


@pytest.mark.parametrize("kind", URGENCY)
def test_each_kind_has_a_sentence_a_title_and_an_action(kind: Kind) -> None:
    one = structs.replace(new_incident(seen(kind, Party("receiver", "ci"), waiting=187, facts=FACTS), NOW))
    words = summary(one, NOW)
    assert words.endswith(".")
    assert "ci" in words
    assert "  " not in words
    assert "{" not in words + cause(one)
    assert action(one).href.startswith("/ui/")
    assert action(one).label


def test_the_kinds_are_in_the_order_of_urgency() -> None:
    assert tuple(KINDS) == URGENCY


def test_a_callback_that_refuses_is_told_with_its_host_its_results_and_who_is_not_to_blame() -> None:
    billing = seen("callback", Party("source", "billing"), since=NOW - 4_000.0, waiting=187, facts=FACTS)
    assert summary(new_incident(billing, NOW), NOW) == (
        "billing's callback at hooks.example has rejected every result since 21:06 UTC (422 Unprocessable Content)."
        " 187 dead letters can be replayed. Five receivers are not to blame."
    )


def test_what_waits_and_what_is_a_dead_letter_are_counted_apart() -> None:
    failing = seen("failing", waiting=5, facts=Facts(letters=4))
    assert summary(new_incident(failing, NOW), NOW).endswith(". 1 message waits. 4 dead letters can be replayed.")
    assert action(new_incident(failing, NOW)).label == "Try now", "it is not paused"


def test_a_line_that_moves_again_holds_up_nobody() -> None:
    one = new_incident(seen("head_of_line", facts=FACTS), NOW)
    assert summary(one, NOW) == "ci: none waits behind 'm-1' of source 'shop' any more."


def test_credentials_are_told_with_the_status() -> None:
    facts = Facts(host="ci.example", status=401, why="401 Unauthorized", condition="its circuit breaker is open")
    one = new_incident(seen(since=NOW - 90_000.0, waiting=1, facts=facts), NOW)
    assert cause(one) == "The receiver rejected our credentials (401)"
    assert summary(one, NOW) == (
        "ci at ci.example has rejected our credentials since 13 Nov 21:13 UTC (401 Unauthorized);"
        " its circuit breaker is open. 1 message waits."
    )


@pytest.mark.parametrize(("status", "why"), [(307, "307 Temporary Redirect"), (405, "405 Method Not Allowed")])
def test_a_url_that_redirects_or_refuses_posts_is_not_said_to_be_missing(status: int, why: str) -> None:
    one = new_incident(seen("wrong_url", facts=Facts(status=status, why=why)), NOW)
    assert cause(one) == f"Its URL accepts no messages ({status})"
    assert f"ci has accepted no messages at its URL since 22:13 UTC ({why})" in summary(one, NOW)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_of_a_dead_letter_has_a_party_and_a_kind(reason: str) -> None:
    party = party_of_letter("ci", "shop", reason)
    assert party.name
    assert kind_of_letter(party, reason, None, "") in KINDS


@pytest.mark.parametrize(
    ("reason", "status", "detail", "kind"),
    [
        ("exhausted", 401, "POST https://ci.example: 401", "credentials"),
        ("exhausted", None, "POST https://10.1.2.3/: blocked: 10.1.2.3 is a private address", "address_blocked"),
        ("exhausted", None, "given up after 3 attempts; the last: POST https://x/: dns: unknown", "dns"),
        ("exhausted", None, "POST https://x/: tls: certificate has expired", "tls"),
        ("exhausted", 503, "", "failing"),
        ("rejected", 422, "", "rejected"),
        ("rejected", 404, "", "wrong_url"),
        ("answer_timeout", None, "", "no_answer"),
        ("backlog_full", None, "", "backlog"),
        ("callback_rejected", 422, "", "callback"),
        ("callback_exhausted", None, "POST https://x/: tls: certificate has expired", "callback"),
        ("poison", None, "", "relay_fault"),
        ("unknown_receiver", None, "", "invalid_messages"),
    ],
)
def test_the_kind_of_a_dead_letter_is_that_of_its_last_attempt(
    reason: str, status: int | None, detail: str, kind: Kind
) -> None:
    assert kind_of_letter(party_of_letter("ci", "shop", reason), reason, status, detail) == kind


def test_the_kind_of_a_failure_is_read_from_the_texts_that_name_it() -> None:
    assert failure_in("POST https://x/: connect timeout: 10 s") == "connect_timeout"
    assert failure_in("POST https://x/: no name server answers: dns silent") == "dns_silent"
    assert failure_in("it got no answer") is None


def test_its_dead_letters_are_a_selection_for_a_replay() -> None:
    one = new_incident(seen("callback", Party("source", "billing"), facts=FACTS), NOW)
    assert replay_selection(one) == {"source": "billing", "reason": ["callback_rejected"]}
    assert replay_selection(new_incident(seen(), NOW)) is None


@pytest.mark.parametrize(
    ("state", "detail", "text"),
    [
        ("done", None, "1,200 sent again, 3 left out"),
        ("stopped", None, "1,200 sent again, 3 left out; then it was stopped"),
        ("failed", "its topic is gone", "1,200 sent again, 3 left out; then it failed: its topic is gone"),
    ],
)
def test_fixing_an_incident_reports_how_its_replay_ended(state: JobState, detail: str | None, text: str) -> None:
    job = cast(JobView, {"sent": 1_200, "skipped": 3, "state": state, "detail": detail})
    assert replayed(job) == text
