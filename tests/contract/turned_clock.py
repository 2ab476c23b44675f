"""Time that only tests move, also for the keys of a server."""

from redis.asyncio import Redis

from tests.contract.state_contract import WINDOW_S

_AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    redis.call('PEXPIRE', key, left - ARGV[1]) -- 0 or less deletes it
  end
end
"""


class TurnedClock:
    """Unix seconds; at the beginning of a half window."""

    def __init__(self) -> None:
        self.now = WINDOW_S / 2 * 3_400_000

    def __call__(self) -> float:
        return self.now


async def age_keys(client: Redis, seconds: float) -> None:
    """Shorten the rest of every key's life, and end what is over."""
    await client.eval(_AGE, 0, str(round(seconds * 1000)))
