"""Texts of notices, digests and quiet hours."""

from datetime import UTC, datetime

import pytest

from relay.domain.incident import Facts, Incident, Observation, Party, new_incident
from relay.domain.incident_notice import (
    MOST_LINES,
    News,
    gathered,
    mail,
    pagerduty_event,
    parse_quiet_hours,
    slack_message,
    subject,
)
from relay.domain.own_events import Change

NOW = datetime(2026, 1, 15, 12, 0, tzinfo=UTC).timestamp()
BASE = "https://relay.example"


def incident(name: str = "ci") -> Incident:
    facts = Facts(host="ci.example", why="401 Unauthorized", status=401)
    return new_incident(
        Observation("credentials", Party("receiver", name), NOW, since=NOW, waiting=3, facts=facts), NOW
    )


def news(change: Change = "incident.opened", name: str = "ci") -> News:
    return News(change, incident(name), NOW)


@pytest.mark.parametrize(
    ("hours", "clock", "left_s"),
    [
        ("22:00-07:00", "21:59", 0),
        ("22:00-07:00", "22:00", 9 * 3600),
        ("22:00-07:00", "06:59", 60),
        ("22:00-07:00", "07:00", 0),
        ("12:00-13:30", "12:30", 3600),
        ("12:00-13:30", "13:30", 0),
        ("00:00-24:00", None, None),
    ],
)
def test_quiet_hours_may_pass_midnight(hours: str, clock: str | None, left_s: int | None) -> None:
    if clock is None or left_s is None:
        with pytest.raises(ValueError, match="does not exist"):
            parse_quiet_hours(hours)
        return
    at = datetime.fromisoformat(f"2026-01-15T{clock}:00+00:00").timestamp()
    assert parse_quiet_hours(hours).left_s(at) == left_s


def test_quiet_hours_are_those_of_a_place_also_when_its_clocks_change() -> None:
    quiet = parse_quiet_hours("22:00-07:00 Europe/Berlin")
    assert quiet.left_s(datetime(2026, 1, 15, 21, 30, tzinfo=UTC).timestamp()) == 8.5 * 3600
    night = datetime(2026, 3, 28, 22, 0, tzinfo=UTC).timestamp()  # an hour of it is left out
    assert quiet.left_s(night) == 7 * 3600


@pytest.mark.parametrize("text", ["", "22-7", "22:00-07:00 Nowhere/City", "25:00-07:00"])
def test_odd_hours_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hour"):
        parse_quiet_hours(text)


def test_of_each_incident_the_latest_change_counts() -> None:
    digest = gathered(gathered([news()], news(name="cd")), news("incident.resolved"))
    assert [(one.change, one.incident.party.name) for one in digest] == [
        ("incident.opened", "cd"),
        ("incident.resolved", "ci"),
    ]
    assert subject(digest) == "Incidents: 1 opened, 1 resolved"
    assert subject([news("incident.resolved")]) == "resolved: ci: The receiver rejected our credentials (401)"


def test_a_chat_gets_a_line_with_a_link_for_each() -> None:
    text = slack_message([news(name="a<b>&c")], BASE)["text"]
    assert text.startswith(f":red_circle: <{BASE}/ui/incidents/inc_")
    assert "a&lt;b&gt;&amp;c at ci.example has rejected our credentials since 12:00 UTC" in text
    many = slack_message([news(name=f"r{n}") for n in range(MOST_LINES + 3)], None)["text"].split("\n")
    assert many[-1] == "And 3 more."


def test_a_mail_is_plain_text_and_a_name_adds_no_header() -> None:
    message = mail([news(name="a\nBcc: all@example.com")], "relay@example.com", ["ops@example.com"], BASE)
    assert message["Subject"].startswith("[relay] a Bcc: all@example.com: ")
    assert message["Bcc"] is None
    assert f"{BASE}/ui/incidents/inc_" in message.get_content()


def test_a_mail_decodes_no_name() -> None:
    message = mail([news(name="=?utf-8?q?a=00=0ABcc:_b?=")], "relay@example.com", ["ops@example.com"], BASE)
    assert message["Subject"].startswith("[relay] = ?utf-8?q?a=00=0ABcc:_b?=: ")
    assert b"\0" not in message.as_bytes()


def test_an_incident_there_is_one_here() -> None:
    opened, resolved = (
        pagerduty_event(news(change), "key", BASE) for change in ("incident.opened", "incident.resolved")
    )
    assert (opened["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == resolved["dedup_key"] == incident().id
    assert opened["payload"]["severity"] == "error"
    assert opened["links"][0]["href"] == f"{BASE}/ui/incidents/{incident().id}"
