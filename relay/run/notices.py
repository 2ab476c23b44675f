"""Builds the notices about incidents that the settings ask for."""

from collections.abc import Iterator, Sequence
from functools import partial

from relay.config.setting_values import OwnerNotices, owners_of
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.delivery.port import Transport
from relay.domain.errors import UserError
from relay.domain.incident import Incident
from relay.domain.incident_notice import parse_quiet_hours
from relay.incidents.notices import Channel, IncidentNotices, Mail, PagerDuty, Recipient, Slack, smtp_server
from relay.run.composition import ProcessContext
from relay.telemetry.metrics import Metrics


def notices_of(context: ProcessContext, transport: Transport, metrics: Metrics) -> IncidentNotices | None:
    """The notices by the settings; None if these name no recipient. Raises UserError."""
    recipients = recipients_of(context.settings, transport)
    if not recipients:
        return None
    return IncidentNotices(recipients, partial(_owner_of, context.registry), context.clock, metrics)


def _owner_of(registry: Registry, one: Incident) -> str | None:
    if one.party.type != "receiver" or registry.life_of(one.party.name).id != one.life:
        return None
    return registry.owner_of(one.party.name)


def recipients_of(settings: Settings, transport: Transport) -> list[Recipient]:
    """Those who get notices. Raises UserError."""
    return [each for each in _recipients(settings, transport) if each.channels]


def _recipients(settings: Settings, transport: Transport) -> Iterator[Recipient]:
    operator = OwnerNotices(
        None if settings.notice_slack_url is None else settings.notice_slack_url.get_secret_value(),
        settings.notice_email_to,
        None if settings.notice_pagerduty_key is None else settings.notice_pagerduty_key.get_secret_value(),
        settings.notice_quiet_hours,
        settings.notice_digest,
    )
    yield _recipient(settings, transport, operator, None)
    for owner, wanted in owners_of(settings.notice_owners).items():
        yield _recipient(settings, transport, wanted, owner)


def _recipient(settings: Settings, transport: Transport, wanted: OwnerNotices, owner: str | None) -> Recipient:
    quiet = None if wanted.quiet_hours is None else parse_quiet_hours(wanted.quiet_hours)
    digest_s = settings.notice_digest if wanted.digest_s is None else wanted.digest_s
    return Recipient(list(_channels(settings, transport, wanted)), owner, quiet, digest_s)


def _channels(settings: Settings, transport: Transport, wanted: OwnerNotices) -> Iterator[Channel]:
    base = settings.public_url
    if wanted.slack_url is not None:
        yield Slack(wanted.slack_url, transport, base)
    if wanted.pagerduty_key is not None:
        yield PagerDuty(wanted.pagerduty_key, settings.notice_pagerduty_url, transport, base)
    if wanted.email_to:
        yield _mail(settings, wanted.email_to)


def _mail(settings: Settings, recipients: Sequence[str]) -> Mail:
    if settings.notice_smtp_url is None or settings.notice_email_from is None:
        raise UserError("notice_email_to: e-mails need RELAY_NOTICE_SMTP_URL and RELAY_NOTICE_EMAIL_FROM, too")
    server = smtp_server(settings.notice_smtp_url.get_secret_value())
    return Mail(server, settings.notice_email_from, recipients, settings.public_url)
