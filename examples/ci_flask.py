"""A CI on Flask that answers later: `CI_SECRET=... python examples/ci_flask.py`."""

import os
import threading
import time

from flask import Flask

from relay.receiver import Webhook, answer
from relay.receiver.for_flask import webhook

SECRET = os.environ["CI_SECRET"]
app = Flask(__name__)


def build(hook: Webhook) -> None:
    time.sleep(0.1)  # a real build takes longer
    if hook.answer_url is not None:
        answer(hook.answer_url, {"state": "passed", "build": hook.webhook_id})


@app.post("/hooks")
def hooks() -> tuple[dict[str, str], int]:
    threading.Thread(target=build, args=(webhook(SECRET),)).start()
    return {"state": "running"}, 202


if __name__ == "__main__":
    app.run("127.0.0.1", int(os.environ.get("PORT", "9000")))
