"""Django: `@webhook(SECRET)` on a view that takes the request and its delivery."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from relay.receiver.raw_url import asgi_url, wsgi_url
from relay.receiver.webhook import InvalidSignature, Webhook, verify


def webhook(
    secret: str | Sequence[str],
) -> Callable[[Callable[[HttpRequest, Webhook], HttpResponse]], Callable[[HttpRequest], HttpResponse]]:
    """Calls the view with the verified delivery; 401 if the signature does not match. The relay has no CSRF token, so
    the view is exempt."""

    def decorate(view: Callable[[HttpRequest, Webhook], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
        @wraps(view)
        def verified(request: HttpRequest) -> HttpResponse:
            try:
                origin, scope = f"{request.scheme}://{request.get_host()}", getattr(request, "scope", None)
                raw = wsgi_url(origin, request.META) if scope is None else asgi_url(origin, scope)
                url = raw or request.build_absolute_uri()
                hook = verify(secret, request.headers, request.body, url=url, method=str(request.method))
            except InvalidSignature as error:
                return HttpResponse(str(error), status=401)
            return view(request, hook)

        exempt: Any = csrf_exempt(verified)
        return exempt  # type: ignore[no-any-return]

    return decorate
