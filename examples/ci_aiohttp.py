"""A CI on aiohttp that answers later: `CI_SECRET=... python examples/ci_aiohttp.py`."""

import asyncio
import os

from aiohttp import web

from relay.receiver import Webhook, answer_async
from relay.receiver.for_aiohttp import webhook

SECRET = os.environ["CI_SECRET"]
BUILDS = set[asyncio.Task[None]]()


async def build(hook: Webhook) -> None:
    await asyncio.sleep(0.1)  # a real build takes longer
    if hook.answer_url is not None:
        await answer_async(hook.answer_url, {"state": "passed", "build": hook.webhook_id})


async def hooks(request: web.Request) -> web.Response:
    task = asyncio.create_task(build(await webhook(SECRET, request)))
    BUILDS.add(task)  # asyncio itself keeps no task alive
    task.add_done_callback(BUILDS.discard)
    return web.json_response({"state": "running"}, status=202)


app = web.Application()
app.router.add_post("/hooks", hooks)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
