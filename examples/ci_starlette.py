"""A CI on Starlette that answers later: `CI_SECRET=... python examples/ci_starlette.py`."""

import asyncio
import os

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from relay.receiver import Webhook, answer_async
from relay.receiver.for_starlette import webhook

verified = webhook(os.environ["CI_SECRET"])


async def build(hook: Webhook) -> None:
    await asyncio.sleep(0.1)  # a real build takes longer
    if hook.answer_url is not None:
        await answer_async(hook.answer_url, {"state": "passed", "build": hook.webhook_id})


async def hooks(request: Request) -> JSONResponse:
    hook = await verified(request)
    return JSONResponse({"state": "running"}, 202, background=BackgroundTask(build, hook))


app = Starlette(routes=[Route("/hooks", hooks, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
