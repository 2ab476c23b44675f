"""Flask: `hook = webhook(SECRET)` in a view."""

from collections.abc import Sequence

from flask import request
from werkzeug.exceptions import Unauthorized
from werkzeug.wsgi import get_current_url

from relay.receiver.webhook import InvalidSignature, Webhook, verify


def webhook(secret: str | Sequence[str]) -> Webhook:
    """The verified delivery of the request that is being served; 401 if the signature does not match."""
    try:
        url = get_current_url(request.environ)
        return verify(secret, dict(request.headers), request.get_data(), url=url, method=request.method)
    except InvalidSignature as error:
        raise Unauthorized(str(error)) from error
