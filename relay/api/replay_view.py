"""What a job looks like from outside: pure functions from its records."""

from relay.api.view import rfc3339
from relay.control.replay_jobs import ReplayJob
from relay.domain.replay_job import ReplayOrder, eta_s
from relay.domain.selection import Selection
from relay.replay.replay_service import ExpiredRecords, ReplayPreview
from relay.schema.replays import JobView, PreviewView, ReplayRequestView


def job_view(job: ReplayJob, now: float) -> JobView:
    """`now`: Unix seconds."""
    order, progress = job.order, job.progress
    left_s = eta_s(progress, now)
    return {
        "id": order.id,
        "action": order.action,
        "state": "stopping" if job.stopping and not job.is_over else progress.state,
        "detail": progress.detail,
        "request": request_view(order),
        "made_at": rfc3339(order.made_at),
        "begun_at": _moment(progress.begun_at),
        "ended_at": _moment(progress.ended_at),
        "counted": progress.counted,
        "sent": progress.sent,
        "skipped": sum(progress.skipped.values()),
        "skipped_because": dict(sorted(progress.skipped.items())),
        "eta": None if left_s is None else rfc3339(now + left_s),
        "eta_s": None if left_s is None else round(left_s, 1),
    }


def request_view(order: ReplayOrder) -> ReplayRequestView:
    """What was asked for, moments made absolute; what was left out is null."""
    chosen: Selection = order.selection
    return {
        "receiver": sorted(chosen.receivers) or None,
        "source": sorted(chosen.sources) or None,
        "reason": sorted(chosen.reasons) or None,
        "status": sorted(chosen.statuses) or None,
        "stage": sorted(chosen.stages) or None,
        "ids": sorted(chosen.ids) or None,
        "since": _moment_ms(chosen.since_ms),
        "until": _moment_ms(chosen.until_ms),
        "only_failed": order.only_failed,
        "rate": order.rate,
    }


def preview_view(order: ReplayOrder, preview: ReplayPreview, gone: ExpiredRecords) -> PreviewView:
    """`complete` false: there is more than could be counted in the time that a request may take. `gone`: records that
    the log does not have any more, and that may have matched. `unremembered`: how many of those to be sent failed so
    long ago that it is not known whether they were replayed before."""
    return {
        "dry_run": True,
        "action": order.action,
        "request": request_view(order),
        "counted": preview.counted,
        "to_send": preview.to_send,
        "skipped": preview.skipped.total(),
        "skipped_because": dict(sorted(preview.skipped.items())),
        "complete": preview.complete,
        "gone": None if gone.before_ms is None else {"records": gone.records, "before": _moment_ms(gone.before_ms)},
        "not_found": list(preview.not_found),
        "unremembered": preview.unremembered,
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def _moment_ms(moment_ms: int | None) -> str | None:
    return None if moment_ms is None else rfc3339(moment_ms / 1000)
