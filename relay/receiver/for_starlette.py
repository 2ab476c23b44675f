"""Starlette and FastAPI: `hook: Annotated[Webhook, Depends(webhook(SECRET))]`, or `await webhook(SECRET)(request)`."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request

from relay.receiver.webhook import InvalidSignature, Webhook, asgi_url, verify


def webhook(secret: str | Sequence[str]) -> Callable[[Request], Awaitable[Webhook]]:
    """Makes the verified delivery of a request; 401 if the signature does not match."""

    async def verified(request: Request) -> Webhook:
        try:
            origin = f"{request.scope['scheme']}://{request.headers.get('host', '')}"
            url = asgi_url(origin, request.scope) or str(request.url)
            return verify(secret, request.headers, await request.body(), url=url, method=request.method)
        except InvalidSignature as error:
            raise HTTPException(401, str(error)) from error

    return verified
