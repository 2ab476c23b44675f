"""The routes that say how the relay is as a whole."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from relay.api.openapi.operation import DocumentedResponse, Example, Operation, Parameter, ReceiverName, json_of
from relay.api.overview.resource import LanePage, OverviewView
from relay.api.paging import MOST
from relay.api.settings import SettingsView
from relay.state.lanes import STAGES

_NOUN: Final = "overview"

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/overview",
        id="getOverview",
        noun=_NOUN,
        summary="What flows, what fails, and what needs somebody first",
        description="For people who look after the relay. It is made anew a second after the last one at the earliest, "
        "for all who ask. Of very many receivers or dead letters some are looked at. `attention` has what needs "
        "somebody, the most urgent first, where there is one with a call of this API that may help.",
        answers=(DocumentedResponse(200, "How it is.", json_of(OverviewView)),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path="/v1/settings",
        id="listSettings",
        noun=_NOUN,
        summary="The settings in force, and where each comes from",
        description="Of the process that is asked; another one may have others. Secrets are masked. It is what `relay "
        "config show` prints of the settings of a shell.",
        answers=(DocumentedResponse(200, "The settings.", json_of(SettingsView)),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path="/v1/lanes",
        id="listLanes",
        noun=_NOUN,
        summary="Each partition: how far it is read, and whether somebody serves it",
        description="In the order of topic and partition, as of the last look, as for the overview.",
        parameters=(
            Parameter("receiver", "query", list[ReceiverName], "Their own lanes."),
            Parameter("role", "query", list[Literal[*STAGES]], "What these workers read."),  # type: ignore[valid-type]
            Parameter("served", "query", bool, "Only those that somebody serves, or that nobody does."),
            Parameter("limit", "query", Annotated[int, Meta(ge=1, le=MOST)], "So many at most."),
            Parameter("cursor", "query", str, "Where to go on, from an answer."),
        ),
        answers=(DocumentedResponse(200, "The lanes.", json_of(LanePage)),),
        example=Example(200, query={"served": "false"}),
    ),
)
