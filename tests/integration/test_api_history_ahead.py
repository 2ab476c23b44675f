"""What is listed of deliveries whose callback the history was never told of: what the state knows."""

import os
from pathlib import Path

from relay.domain.identity import DeliveryId
from relay.domain.result_delivery import Handover, to_code
from relay.state.rows import Mark, Stage, delivery_row
from tests.browser.dev_relay import DevRelay
from tests.contract.history_facts import arrival, ending, put
from tests.integration.api_rig import document
from tests.integration.history_world import world
from tests.integration.test_history_dev import saying
from tests.servers.asking import until


async def test_a_callback_that_nobody_told_of_is_listed_as_the_state_knows_it() -> None:
    async with world() as at:
        answered = [arrival(number, source="app", receivers=("ci",)) for number in (5, 6, 7)]
        await put(at.history, *answered, *(ending(f"m-{n}", source="app", offset=n, at=n) for n in (5, 6, 7)))
        done = to_code(Handover.DELIVERED, 1)
        of_five, of_six = (delivery_row(DeliveryId("ci", "app", f"m-{number}")) for number in (5, 6))
        await at.rig.state.mark([Mark(of_five, 0, Stage.DONE, (0, 5), done)])
        await at.rig.state.mark([Mark(of_six, 1, Stage.DONE, (0, 6), done)])  # another life
        items = document(await at.get("/v1/messages?source=app"))["items"]
        assert [(item["message_id"], item["status"]) for item in items] == [
            ("m-7", "response_received_from_receiver"),
            ("m-6", "response_received_from_receiver"),
            ("m-5", "response_delivered_to_sender"),
        ]
        assert await at.ids("source=app&status=response_received_from_receiver") == ["m-7", "m-6"]
        assert await at.ids("source=app&status=response_received_from_receiver", "receiver:ci") == ["m-7", "m-6"]


async def test_while_the_state_is_away_the_history_is_listed_as_it_is() -> None:
    async with world() as at:
        await put(at.history, arrival(5, source="app"), ending("m-5", source="app", offset=5))
        at.rig.state.away.add("watch")
        [item] = document(await at.get("/v1/messages?source=app"))["items"]
        assert item["status"] == "response_received_from_receiver"


async def test_after_a_kill_between_a_callback_and_its_record_the_list_says_what_the_message_says(
    tmp_path: Path,
) -> None:
    data, paths = tmp_path / "data", {"PYTHONPATH": os.getcwd()}
    async with saying(200) as receiver, saying(200) as callback:
        async with DevRelay(tmp_path, paths, data=data, module="tests.integration.untold_relay") as dev:
            await dev.source("shop", callback={"url": callback})
            await dev.receiver("ci", receiver)
            await dev.send("shop", "m-1", to="ci")
            await dev.process.finish()
        async with DevRelay(tmp_path, data=data) as dev:
            await dev.until_status("shop", "m-1", "response_delivered_to_sender")
            listed: list[str] = []

            async def has_all() -> bool:
                page = await dev.call("GET", "/v1/messages?source=shop")
                listed[:] = [item["status"] for item in page["items"]]
                return page["behind_s"] == 0 and listed not in ([], ["arrived"])

            await until(has_all)
            assert listed == ["response_delivered_to_sender"]
            told = await dev.call("GET", "/v1/sources/shop/messages/m-1/attempts")
            assert [each for each in told["items"] if each["kind"] == "callback"] == []
