"""aiohttp: `hook = await webhook(SECRET, request)`."""

from collections.abc import Sequence

from aiohttp import web

from relay.receiver.webhook import InvalidSignature, Webhook, verify


async def webhook(secret: str | Sequence[str], request: web.Request) -> Webhook:
    """The verified delivery of a request; 401 if the signature does not match."""
    try:
        url = f"{request.scheme}://{request.host}{request.raw_path}"
        return verify(secret, request.headers, await request.read(), url=url, method=request.method)
    except InvalidSignature as error:
        raise web.HTTPUnauthorized(text=str(error)) from error
