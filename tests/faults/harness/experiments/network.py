"""E7: the network between the relay and the broker. E8a: the one between the relay and Redis.

Both go through proxies, which the relay's processes cannot bypass; senders connect directly. Under load, in turn: the
connections hang and nothing gets through for 5 to 15 s (a black hole); all connections are reset, five times; each
direction takes half a second (Redis: 2 s, more than the relay waits for an answer); one chunk in a hundred is followed
by a reset. Then the faults end.

Passes: nothing lost, no copy at receivers that can be asked, order kept, all quiet at the end: no consumer or producer
stays wedged. Recovery: until all that was sent before the fault is answered, so it holds the fault itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.receivers import MIX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 5
"""Trials of each kind of fault."""
_CUT: Final = 0.01
_LASTS_S: Final = (5.0, 15.0)

Trouble = Callable[[Proxy, float, float], Awaitable[None]]
"""Applies a fault to a proxy, for a time, and with a latency if the fault has one."""


async def black_hole(proxy: Proxy, seconds: float, latency_s: float) -> None:
    proxy.to_target.black_hole = proxy.to_client.black_hole = True
    await asyncio.sleep(seconds)


async def one_way(proxy: Proxy, seconds: float, latency_s: float) -> None:
    """The relay's requests arrive, but no response does: the outcome of every call is unknown."""
    proxy.to_client.black_hole = True
    await asyncio.sleep(seconds)
    proxy.reset()


async def resets(proxy: Proxy, seconds: float, latency_s: float) -> None:
    for _ in range(5):
        proxy.reset()
        await asyncio.sleep(seconds / 5)


async def refusals(proxy: Proxy, seconds: float, latency_s: float) -> None:
    proxy.refuse = True
    proxy.reset()
    await asyncio.sleep(seconds)


async def latency(proxy: Proxy, seconds: float, latency_s: float) -> None:
    proxy.to_target.latency_s = proxy.to_client.latency_s = latency_s / 2
    await asyncio.sleep(seconds)


async def cuts(proxy: Proxy, seconds: float, latency_s: float) -> None:
    proxy.to_target.cut_chance = proxy.to_client.cut_chance = _CUT
    await asyncio.sleep(seconds)


TROUBLES: Final[tuple[Trouble, ...]] = (black_hole, one_way, resets, refusals, latency, cuts)


async def kafka_network(context: Context, findings: Findings) -> None:
    await _network(context, findings, lambda servers: servers.kafka_proxy, "Kafka", 1.0)


async def redis_network(context: Context, findings: Findings) -> None:
    await _network(context, findings, lambda servers: servers.redis_proxy, "Redis", 4.0)


async def _network(
    context: Context, findings: Findings, proxy_of: Callable[[Servers], Proxy | None], what: str, latency_s: float
) -> None:
    async with Servers(proxied=True, seed=context.seed) as servers, Stack(servers, context.out) as stack:
        proxy = proxy_of(servers)
        assert proxy is not None, "proxied servers have proxies"
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)
        for _ in range(context.times(TRIALS)):
            for trouble in TROUBLES:

                async def make(load: Load, trouble: Trouble = trouble) -> None:
                    await asyncio.sleep(2.0)
                    seconds = killer.soon(*_LASTS_S)
                    stack.fault(f"{trouble.__name__} to {what} for {seconds:.1f} s")
                    await trouble(proxy, seconds, latency_s)
                    proxy.restore()
                    stack.fault(f"the network to {what} is well again", heals=True)
                    await asyncio.sleep(2.0)

                await trials.run(Plan(list(MIX)), make, what=trouble.__name__, only=" to ", quiet_s=180)


EXPERIMENTS: Final = (
    Experiment("E7", "black holes, resets, latency and cuts between relay and Kafka", kafka_network),
    Experiment("E8a", "the same between relay and Redis", redis_network),
)
