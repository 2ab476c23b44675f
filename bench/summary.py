"""Results as lines for the terminal."""

from collections.abc import Iterator

from bench.counters import Traffic
from bench.results import Counts, Drain, InFlight, Latency, Steady
from bench.usage import FOREIGN_LOAD, Usage


def drain_lines(result: Drain) -> Iterator[str]:
    what = "flood" if result.flood else "drain"
    first = "" if result.first_s is None else f", first arrival {result.first_s:.1f} s after the start of the relay"
    yield f"{what}: {result.rate:,.0f}/s over {result.seconds:.1f} s{first}"
    yield f"  {_counts(result.counts)}"
    yield from _traffic(result.traffic)
    yield from _usage(result.usage)


def steady_lines(result: Steady) -> Iterator[str]:
    yield verdict_line(result)
    yield f"  {_latency(result.latency)}"
    yield f"  {_counts(result.counts)}"
    yield from _traffic(result.traffic)
    yield from _usage(result.usage)


def in_flight_lines(result: InFlight) -> Iterator[str]:
    levels = ", ".join(f"{level.held:,} with {level.rss / 2**20:.0f} MiB" for level in result.levels)
    yield f"in flight at once, in one process: {levels}"
    yield f"  {result.bytes_each / 1024:.1f} KiB a request with payloads of {result.payload:,} bytes"
    yield f"  {_counts(result.counts)}"


def verdict_line(result: Steady) -> str:
    """Whether the rate held, in one line."""
    verdict = result.verdict
    word = "sustained" if verdict.sustained else "NOT sustained"
    return (
        f"{result.rate:,.0f}/s for {result.seconds:g} s: {word}"
        f" ({verdict.behind_s:.2f} s behind at the end, growing by {verdict.growth:.1%} of the rate)"
    )


def _latency(latency: Latency) -> str:
    figures = (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99), ("max", latency.max))
    return "latency ms: " + ", ".join(f"{name} {value:.1f}" for name, value in figures)


def _counts(counts: Counts) -> str:
    more = "".join(
        f", {word} {count:,}" for word, count in (("refused", counts.refused), ("rejected", counts.rejected)) if count
    )
    return (
        f"of {counts.sent:,}: lost {counts.lost:,}, duplicated {counts.duplicated:,}"
        f", out of order {counts.misordered:,}{more}"
    )


def _traffic(traffic: Traffic) -> Iterator[str]:
    if traffic.kafka is not None:
        kinds = ", ".join(f"{kind} {count:.2f}" for kind, count in traffic.kafka.items())
        yield f"  Kafka requests/message: {traffic.requests:.2f} ({kinds})"
    if traffic.trips is not None:
        yield f"  Redis round trips/message: {traffic.trips:.2f}, script calls {traffic.scripts:.2f}"
    yield "  wake-ups/message: " + ", ".join(f"{name} {count:.2f}" for name, count in traffic.wakeups.items())


def _usage(usage: Usage) -> Iterator[str]:
    whole = sum(cpu for name, cpu in usage.cpu_us.items() if name != FOREIGN_LOAD)
    parts = ", ".join(f"{name} {cpu:.0f}" for name, cpu in usage.cpu_us.items())
    yield f"  CPU us/message: {whole:.0f} ({parts})"
    yield "  cores: " + ", ".join(f"{name} {cores:.2f}" for name, cores in usage.cores.items())
    yield "  RSS MiB: " + ", ".join(f"{name} {size >> 20}" for name, size in usage.rss.items())
    if "relay" in usage.largest:
        yield f"  largest process of the relay: {usage.largest['relay'] >> 20} MiB"
    fit = "" if usage.fit else "  UNFIT: the machine was not ours alone"
    yield f"  steal {usage.steal:.1%}, foreign load {usage.foreign:.1%}, load average {usage.load:.1f}{fit}"
