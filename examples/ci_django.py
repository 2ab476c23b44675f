"""A CI on Django that answers later: `CI_SECRET=... python examples/ci_django.py`."""

import os
import threading
import time
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from relay.receiver import Webhook, answer
from relay.receiver.for_django import webhook

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY=os.urandom(32).hex())


def build(hook: Webhook) -> None:
    time.sleep(0.1)  # a real build takes longer
    if hook.answer_url is not None:
        answer(hook.answer_url, {"state": "passed", "build": hook.webhook_id})


@webhook(os.environ["CI_SECRET"])
def hooks(request: HttpRequest, hook: Webhook) -> HttpResponse:
    threading.Thread(target=build, args=(hook,)).start()
    return JsonResponse({"state": "running"}, status=202)


urlpatterns = [path("hooks", hooks)]

if __name__ == "__main__":
    make_server("127.0.0.1", int(os.environ.get("PORT", "9000")), get_wsgi_application()).serve_forever()
