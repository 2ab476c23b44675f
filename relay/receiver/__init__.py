"""For the receiver's side: verify a delivery's signature, and answer it later.

    from relay.receiver import answer, verify

    webhook = verify(SECRET, request.headers, body)  # raises InvalidSignature
    ...
    if webhook.answer_url is not None:  # the relay has answer URLs
        answer(webhook.answer_url, {"state": "passed"})  # when the build is done

`for_aiohttp`, `for_django`, `for_flask` and `for_starlette` (FastAPI, too) do the first step for a framework.
"""

from relay.receiver.answering import answer as answer
from relay.receiver.answering import answer_async as answer_async
from relay.receiver.webhook import InvalidSignature as InvalidSignature
from relay.receiver.webhook import Webhook as Webhook
from relay.receiver.webhook import verify as verify
