"""Notices about incidents to people: texts for chat and e-mail, events for PagerDuty, digests and quiet hours. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from email.message import EmailMessage
from html import escape
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from relay.domain.incident import Incident
from relay.domain.incident_kinds import KINDS, cause, page_of, summary
from relay.domain.own_events import Change

MOST_LINES: Final = 20
"""Incidents of a digest; the others are a number."""
_MOST_SUMMARY: Final = 1_024
"""Characters that PagerDuty takes."""
_HOURS: Final = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)(?: (\S+))?")


class News(NamedTuple):
    """A change of an incident. `at`: when it was noticed, Unix seconds."""

    change: Change
    incident: Incident
    at: float


class QuietHours(NamedTuple):
    """Hours of each day in which people are sent nothing but pages: from `begin` until `end`, in `zone`."""

    begin: time
    end: time
    zone: ZoneInfo

    def left_s(self, now: float) -> float:
        """Seconds until they end; 0 outside of them. `now`: Unix seconds."""
        here = datetime.fromtimestamp(now, self.zone)
        clock = here.time()
        is_in = self.begin <= clock < self.end if self.begin <= self.end else not self.end <= clock < self.begin
        if not is_in:
            return 0.0
        end = datetime.combine(here.date(), self.end, self.zone)
        if end <= here:
            end = datetime.combine(here.date() + timedelta(days=1), self.end, self.zone)
        return end.timestamp() - now


def parse_quiet_hours(text: str) -> QuietHours:
    """`22:00-07:00 Europe/Berlin`, or without a zone in UTC. Raises ValueError."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise ValueError("expected hours and a time zone, such as 22:00-07:00 Europe/Berlin")
    hours = [int(part) for part in found.groups()[:4]]
    try:
        begin, end = time(hours[0], hours[1]), time(hours[2], hours[3])
        return QuietHours(begin, end, ZoneInfo(found[5] or "UTC"))
    except (ValueError, ZoneInfoNotFoundError):
        raise ValueError(f"{text!r} has an hour or a time zone that does not exist") from None


def gathered(before: Sequence[News], news: News) -> list[News]:
    """A digest with `news`: of each incident the latest change counts."""
    return [*(one for one in before if one.incident.id != news.incident.id), news]


def subject(digest: Sequence[News]) -> str:
    """`billing: The callback fails`, or the number of each change."""
    if len(digest) == 1:
        [only] = digest
        end = "resolved: " if only.change == "incident.resolved" else ""
        return f"{end}{only.incident.party.name}: {cause(only.incident)}"
    opened = sum(one.change == "incident.opened" for one in digest)
    parts = [(opened, "opened"), (len(digest) - opened, "resolved")]
    return "Incidents: " + ", ".join(f"{count} {what}" for count, what in parts if count)


def slack_message(digest: Sequence[News], base: str | None) -> dict[str, Any]:
    """The body for an incoming webhook of Slack, or of a chat that takes the same. `base`: the relay's public URL."""
    lines = [_slack_line(one, base) for one in digest[:MOST_LINES]]
    return {"text": "\n".join([*lines, *_more(digest)])}


def _slack_line(one: News, base: str | None) -> str:
    incident, link = one.incident, _link(one, base)
    title = escape(cause(incident), quote=False)
    named = f"<{link}|{title}>" if base is not None else title
    if one.change == "incident.resolved":
        return f":white_check_mark: Resolved: {named} ({escape(incident.party.name, quote=False)})"
    sign = ":red_circle:" if KINDS[incident.kind].severity == "error" else ":large_yellow_circle:"
    return f"{sign} {named}: {escape(summary(incident, one.at), quote=False)}"


def mail(digest: Sequence[News], sender: str, recipients: Sequence[str], base: str | None) -> EmailMessage:
    """An e-mail in plain text."""
    message = EmailMessage()
    line = " ".join(f"[relay] {subject(digest)}".split())[:200]
    message["Subject"] = line.replace("=?", "= ?")  # otherwise an encoded word in a name is decoded, with its NULs
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Auto-Submitted"] = "auto-generated"
    parts = [_mail_part(one, base) for one in digest[:MOST_LINES]]
    message.set_content("\n\n".join([*parts, *_more(digest)]) + "\n")
    return message


def _mail_part(one: News, base: str | None) -> str:
    state = "Resolved" if one.change == "incident.resolved" else KINDS[one.incident.kind].severity.capitalize()
    return f"{state}: {cause(one.incident)}\n{summary(one.incident, one.at)}\n{_link(one, base)}"


def pagerduty_event(one: News, routing_key: str, base: str | None) -> dict[str, Any]:
    """The body for PagerDuty's Events API v2: an incident there for each one here."""
    incident = one.incident
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if one.change == "incident.resolved" else "trigger",
        "dedup_key": incident.id,
        "payload": {
            "summary": f"{cause(incident)}: {summary(incident, one.at)}"[:_MOST_SUMMARY],
            "source": "relay",
            "severity": KINDS[incident.kind].severity,
            "timestamp": datetime.fromtimestamp(incident.opened_at, UTC).isoformat(),
            "component": incident.party.name,
            "class": incident.kind,
            "custom_details": {"waiting": incident.waiting, "count": incident.count},
        },
    }
    return event if base is None else {**event, "links": [{"href": _link(one, base), "text": "Show and fix it"}]}


def _link(one: News, base: str | None) -> str:
    return f"{base or ''}{page_of(one.incident.id)}"


def _more(digest: Sequence[News]) -> list[str]:
    return [f"And {len(digest) - MOST_LINES} more."] if len(digest) > MOST_LINES else []
