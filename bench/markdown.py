"""The report as Markdown: a table of the cases, and below it what was measured how."""

from collections.abc import Iterator

from bench.fixed_table import EXPLAINED, lines
from bench.results import CaseResult, Report, Steady
from bench.summary import in_flight_lines

_COLUMNS = (
    *(
        "case",
        "drain /s",
        "first POST s",
        "sustained /s",
        "allowed /s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "max ms",
        "p50 at 100/s",
    ),
    *("CPU us relay", "Kafka", "Redis", "RSS MiB relay", "largest", "lost", "duplicated", "out of order", "fit"),
)
GROUPS = ("relay", "kafka", "redis", "receiver", "generator")


def markdown(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    machine, calibration = report.machine, report.calibration
    yield "# Benchmark"
    yield ""
    yield f"{report.at}, revision {report.revision or 'unknown'}"
    yield ""
    yield _row(_COLUMNS)
    yield _row(["---"] * len(_COLUMNS))
    for case in report.cases:
        yield _row(_cells(case))
    for case in report.cases:
        if case.fixed:
            yield ""
            yield f"Rates that were asked for, {case.name}:"
            yield ""
            yield from lines(case.fixed)
        if case.in_flight is not None:
            yield ""
            yield from (f"{case.name}, {line.strip()}" for line in in_flight_lines(case.in_flight))
    yield ""
    yield from (f"- {text}" for text in EXPLAINED if any(case.fixed for case in report.cases))
    yield f"- {machine.cpu}, {machine.cores} cores, {machine.memory / 2**30:.0f} GiB; everything ran on it together"
    yield f"- Linux {machine.kernel}, Python {machine.python}; a core runs {calibration.loops / 1e6:.1f} M loops/s"
    yield f"- options: {_pairs(report.options)}"
    yield f"- plan: {_pairs(report.plan)}"
    yield (
        f"- one receiver process takes {calibration.receiver_rate:,.0f} requests/s at"
        f" {calibration.receiver_us:.0f} us CPU each: {headroom(report)}"
    )
    yield "- latencies: at half the sustained rate, from intended sending to arrival (round-trip: back at the sender)"
    yield "- CPU: per message, over the sustained window (else the drain); of all processes of the group"
    yield "- fit: no measured phase had more than 3 % steal or foreign load"


def headroom(report: Report) -> str:
    """Whether the receiver could have taken twice what the relay sent it, so that it is not what was measured."""
    processes = report.options.get("receiver_processes", 1)
    ceiling = report.calibration.receiver_rate * (processes if isinstance(processes, int) else 1)
    best = max((case.best for case in report.cases), default=0.0)
    if not best:
        return "nothing to compare"
    enough = "enough" if ceiling >= 2 * best else "NOT enough, less than twice the result; add --receiver-processes"
    return f"{ceiling / best:.1f} times the highest result, {enough}"


def _cells(case: CaseResult) -> Iterator[str]:
    main = case.latencies[0] if case.latencies else case.sustained
    slow = case.latencies[-1] if case.latencies else None
    yield case.name
    yield _number(case.drain.rate if case.drain else None)
    first_s = case.drain.first_s if case.drain else None
    yield "-" if first_s is None else f"{first_s:.1f}"
    yield _number(case.sustained.rate if case.sustained else None)
    yield _number(case.allowed)
    yield from _latencies(main)
    yield f"{slow.latency.p50:.1f}" if slow else "-"
    cost = case.sustained or case.drain
    for group in GROUPS[:3]:
        yield _number(cost.usage.cpu_us.get(group) if cost else None)
    for of in ("rss", "largest"):
        yield _number(max((getattr(phase.usage, of).get("relay", 0) for phase in case.phases()), default=0) / 2**20)
    counts = [phase.counts for phase in (*case.phases(), *case.tries)]
    yield str(sum(each.lost for each in counts))
    yield str(sum(each.duplicated for each in counts))
    yield str(sum(each.misordered for each in counts)) if case.ordered else "-"
    yield "yes" if case.fit else "unfit"


def _latencies(phase: Steady | None) -> list[str]:
    if phase is None:
        return ["-"] * 4
    latency = phase.latency
    return [f"{value:.1f}" for value in (latency.p50, latency.p95, latency.p99, latency.max)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _pairs(facts: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _row(cells: "Iterator[str] | tuple[str, ...] | list[str]") -> str:
    return "| " + " | ".join(cells) + " |"
