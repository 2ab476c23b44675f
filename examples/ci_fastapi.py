"""A CI on FastAPI that answers later: `CI_SECRET=... python examples/ci_fastapi.py`."""

import asyncio
import os
from typing import Annotated

import uvicorn
from fastapi import BackgroundTasks, Depends, FastAPI

from relay.receiver import Webhook, answer_async
from relay.receiver.for_starlette import webhook

app = FastAPI()
Delivery = Annotated[Webhook, Depends(webhook(os.environ["CI_SECRET"]))]


async def build(hook: Webhook) -> None:
    await asyncio.sleep(0.1)  # a real build takes longer
    if hook.answer_url is not None:
        await answer_async(hook.answer_url, {"state": "passed", "build": hook.webhook_id})


@app.post("/hooks", status_code=202)
async def hooks(hook: Delivery, tasks: BackgroundTasks) -> dict[str, str]:
    tasks.add_task(build, hook)
    return {"state": "running"}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
