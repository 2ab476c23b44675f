"""The route by which a relay looks at itself."""

from typing import Final

from relay.api.doctor import DoctorView
from relay.api.landing import DOCTOR
from relay.api.openapi.operation import DocumentedResponse, Example, Operation, Parameter, ReceiverName, json_of

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=DOCTOR,
        id="lookAtItself",
        noun="doctor",
        summary="Whether all is right, and what to do",
        description="The process that is asked looks at its settings, at Kafka, Redis and the receivers, within 20 "
        "seconds, and also while Kafka or Redis are away. It looks once within 10 seconds at most. docs/doctor.md says "
        "what each check means.",
        parameters=(Parameter("receiver", "query", ReceiverName, "Only what is about this receiver."),),
        answers=(DocumentedResponse(200, "What was found, by check.", json_of(DoctorView)),),
        example=Example(200),
    ),
)
