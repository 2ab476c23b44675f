"""Test of the relay that the browser tests use."""

from relay.sink import Sink
from tests.browser.dev_relay import DevRelay
from tests.browser.visitor import Visitor


async def test_a_message_goes_round_and_a_page_of_it_opens(dev: DevRelay, visitor: Visitor) -> None:
    sink = Sink("answer")
    await sink.start()
    try:
        await dev.receiver("ci", sink.url)
        sent = await dev.send("shop", "a/b c?", b'{"n": 1}', to="ci", ce_type="push")
        assert sent["message_id"] == "a/b c?"
        found = await dev.until_status("shop", "a/b c?", "response_received_from_receiver")
    finally:
        await sink.stop()
    assert found["deliveries"][0]["last_status"] == 200
    assert (await visitor.open("/docs")).status == 200
