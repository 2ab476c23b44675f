"""Takes what a run has left on servers that it did not start: its topics, and its keys."""

from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

_PAGE: Final = 1000


async def clean_kafka(bootstrap: str, prefix: str) -> None:
    """Delete the topics whose names begin with `prefix`. Their groups are empty then, and expire."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = [topic for topic in await admin.list_topics() if topic.startswith(prefix)]
        if topics:
            await admin.delete_topics(topics)
    finally:
        await admin.close()


async def clean_redis(url: str, prefix: str) -> None:
    """Delete the keys whose names begin with `prefix`."""
    async with Redis.from_url(url) as redis:
        page = []
        async for key in redis.scan_iter(match=f"{prefix}*", count=_PAGE):
            page.append(key)
            if len(page) == _PAGE:
                await redis.unlink(*page)
                page.clear()
        if page:
            await redis.unlink(*page)
