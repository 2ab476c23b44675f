"""Checks of the entries, for those that cannot be used here; and of the history's lag."""

from relay.checks.context import Check, CheckContext, KnownEntries
from relay.domain.diagnosis import Checked, error, fine, skipped, warning
from relay.domain.errors import LogUnavailable
from relay.domain.times import format_duration

HISTORY_BEHIND_S = 60.0


@Check("entries", per_receiver=True, limit_s=15.0)
async def look_at_entries(case: CheckContext) -> list[Checked]:
    """Whether each receiver and source can be used in this environment."""
    return judge_entries(await case.known(), case.receiver)


def judge_entries(known: KnownEntries, receiver: str | None = None) -> list[Checked]:
    todo = "set the variable or file, for every process; RELAY_SECRETS_FROM lists the allowed variables"
    found = [error("entries", why, todo, place) for place, why in known.refused.items()]
    if known.refused_more:
        found.append(error("entries", f"{known.refused_more} more entries are refused", "relay receivers check"))
    if receiver is not None and receiver not in known.receivers and not found:
        what = f"there is no receiver {receiver}" + ("" if known.keys is not None else " in the receivers file")
        return [error("entries", what, "relay receivers list --registered", receiver)]
    left = f"; {known.left_out} more receivers were not checked" if known.left_out else ""
    of_file = "" if known.keys is not None else ", by the receivers file: the log was not read"
    counts = f"{len(known.receivers)} receivers and {len(known.sources)} sources can be used here{of_file}{left}"
    return found or [fine("entries", counts)]


@Check("history", if_away="start the store of the history, or correct RELAY_HISTORY_URL")
async def look_at_history(case: CheckContext) -> list[Checked]:
    """How far the history is behind the log."""
    if case.history_behind is None:
        return []
    try:
        return [judge_history(await case.history_behind())]
    except LogUnavailable:
        return [skipped("history", "its store answers; its lag is unknown, as the log cannot be reached")]


def judge_history(behind_s: float | None) -> Checked:
    todo = "relay worker history"
    if behind_s is None:
        return warning("history", "the lag of the history is unknown: no worker reports it", todo)
    text = f"{format_duration(round(behind_s))} behind the log"
    return warning("history", text, todo) if behind_s > HISTORY_BEHIND_S else fine("history", text)
