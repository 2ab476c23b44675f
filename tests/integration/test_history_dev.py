"""Test that `relay dev` shows the whole history of a message that fails, is retried, answered, and returned to the
sender."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.browser.dev_relay import DevRelay
from tests.integration.test_demo import relay
from tests.servers.asking import until
from tests.servers.http import serving

PAYLOAD = b'{"order": {"id": 7},  "paid": true}'

TOKEN = "a-token-that-is-told-to-nobody"


def saying(*statuses: int) -> AbstractAsyncContextManager[str]:
    """A server that sends these responses in turn, and repeats the last one."""
    left = list(statuses)

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        status = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response({"said": status}, status=status)

    return serving(handle)


async def test_what_became_of_a_message_can_be_told_afterwards(tmp_path: Path) -> None:
    async with saying(500, 200) as receiver, saying(200) as callback, DevRelay(tmp_path) as dev:
        await dev.source("shop", callback={"url": callback})
        await dev.receiver("ci", receiver, retry={"base": 0.1, "cap": 0.1}, bearer_token=TOKEN)
        await dev.send("shop", "m-1", PAYLOAD, to="ci", ce_type="order.paid")
        await dev.until_status("shop", "m-1", "response_delivered_to_sender")
        found: list[Any] = []

        async def is_recorded() -> bool:
            query = "payload=/order/id=7&type=order.*&since=1h&status=response_delivered_to_sender"
            found[:] = (await dev.call("GET", f"/v1/messages?{query}"))["items"]
            return bool(found)

        await until(is_recorded)
        [message] = found
        assert (message["message_id"], message["size"]) == ("m-1", len(PAYLOAD))
        [delivery] = message["deliveries"]
        assert (delivery["receiver"], delivery["attempts"], delivery["last_status"]) == ("ci", 2, 200)

        items = (await dev.call("GET", "/v1/sources/shop/messages/m-1/attempts"))["items"]
        assert [(item["kind"], item["attempt"], item["response"]["status"], item["outcome"]) for item in items] == [
            ("callback", 1, 200, "done"),
            ("post", 2, 200, "done"),
            ("post", 1, 500, "retry"),
        ]
        assert items[2]["next_attempt_at"] is not None
        assert json.loads(items[1]["response"]["body"]) == {"said": 200}
        assert TOKEN not in json.dumps(items)
        assert "authorization" in {name.lower() for name in items[1]["request"]["headers"]}
        failed = (await dev.call("GET", "/v1/receivers/ci/attempts?failed=true"))["items"]
        assert [item["response"]["status"] for item in failed] == [500]

        counted = await dev.call("GET", "/v1/stats?by=minute&source=shop")
        assert (counted["totals"]["attempts"], counted["totals"]["delivered"]) == (2, 1)
        assert {each["receiver"] for each in counted["series"]} == {"ci"}

        code, output = await relay(dev.process, "status", "shop", "m-1")
        assert code == 0, output
        for words in ("Attempt 1: 500 Internal Server Error", "Attempt 2: 200 OK", "Callback 1: 200 OK", "Back at"):
            assert words in output
        timeline = output[output.index("to ci") :]
        assert max(map(len, timeline.splitlines())) <= 80
        code, output = await relay(dev.process, "messages", "--source", "shop")
        assert (code, "ci returned (HTTP 200)" in output) == (0, True), output
        code, output = await relay(dev.process, "messages")
        assert (code, "m-1" in output, "relay-probe" in output) == (0, True, False), output
        for command in (("receivers", "list", "--registered"), ("sources", "list"), ("top", "--once", "-o", "json")):
            code, output = await relay(dev.process, *command)
            assert (code, "relay-probe" in output) == (0, False), output
        code, output = await relay(dev.process, "attempts", "shop", "m-1")
        assert (code, "post" in output, "callback" in output) == (0, True, True), output
