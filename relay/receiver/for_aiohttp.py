"""aiohttp: `hook = await webhook(SECRET, request)`."""

from collections.abc import Sequence

from aiohttp import web

from relay.receiver.webhook import InvalidSignature, Webhook, verify


async def webhook(secret: str | Sequence[str], request: web.Request) -> Webhook:
    """The verified delivery of a request; 401 if the signature does not match."""
    try:
        return verify(secret, request.headers, await request.read())
    except InvalidSignature as error:
        raise web.HTTPUnauthorized(text=str(error)) from error
