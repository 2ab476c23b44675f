"""Flask: `hook = webhook(SECRET)` in a view."""

from collections.abc import Sequence

from flask import request
from werkzeug.exceptions import Unauthorized
from werkzeug.urls import iri_to_uri

from relay.receiver.webhook import InvalidSignature, Webhook, verify, wsgi_url


def webhook(secret: str | Sequence[str]) -> Webhook:
    """The verified delivery of the request that is being served; 401 if the signature does not match."""
    try:
        url = wsgi_url(f"{request.scheme}://{request.host}", request.environ) or iri_to_uri(request.url)
        return verify(secret, dict(request.headers), request.get_data(), url=url, method=request.method)
    except InvalidSignature as error:
        raise Unauthorized(str(error)) from error
