"""Django: `@webhook(SECRET)` on a view that takes the request and its delivery."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from relay.receiver.webhook import InvalidSignature, Webhook, asgi_url, verify, wsgi_url

R = TypeVar("R", HttpResponse, Coroutine[Any, Any, HttpResponse])


def webhook(
    secret: str | Sequence[str],
) -> Callable[[Callable[[HttpRequest, Webhook], R]], Callable[[HttpRequest], R]]:
    """Calls the view, which may be a coroutine function, with the verified delivery; 401 if the signature does not
    match. The relay has no CSRF token, so the view is exempt."""

    def decorate(view: Callable[[HttpRequest, Webhook], Any]) -> Any:
        def called(request: HttpRequest) -> Any:
            try:
                hook = _verified(secret, request)
            except InvalidSignature as error:
                return HttpResponse(str(error), status=401)
            return view(request, hook)

        async def awaited(request: HttpRequest) -> HttpResponse:
            found = called(request)
            return found if isinstance(found, HttpResponse) else await found

        return csrf_exempt(wraps(view)(awaited if iscoroutinefunction(view) else called))

    return decorate


def _verified(secret: str | Sequence[str], request: HttpRequest) -> Webhook:
    origin, scope = f"{request.scheme}://{request.get_host()}", getattr(request, "scope", None)
    raw = wsgi_url(origin, request.META) if scope is None else asgi_url(origin, scope)
    url = raw or request.build_absolute_uri()
    return verify(secret, request.headers, request.body, url=url, method=str(request.method))
