"""Logs problems with answer URLs at start: a receiver that answers later would find them only when it tries."""

from collections.abc import Mapping

from relay.config.answer_urls import AnsweringReceiver, AnswerUrls, findings
from relay.config.plan import API, ProcessPlan
from relay.config.settings import Settings
from relay.domain.receiver import Receiver
from relay.telemetry.logging import get_logger

_SENDS = "to-receiver"
_log = get_logger("relay.process")


def log_answer_urls(settings: Settings, plan: ProcessPlan, urls: AnswerUrls, receivers: Mapping[str, Receiver]) -> None:
    """Logs once per group: in its first process, if that sends such URLs or serves them."""
    if plan.index or not plan.roles & {API, _SENDS}:
        return
    known = {name: AnsweringReceiver(one.post.url, one.status_endpoint is not None) for name, one in receivers.items()}
    for finding in findings(settings, urls, known, sends=_SENDS in plan.roles):
        say = _log.warning if finding.receivers or settings.answer_secret else _log.info
        say("answer_urls", problem=str(finding))
