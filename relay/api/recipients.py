"""Whether a message has receivers, among those that this process knows."""

from relay.api.problems import NO_RECEIVER, UNFIT_ID, UNKNOWN_RECEIVER, Problem, problem_of
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.recipients import may_name
from relay.domain.status import unaskable


class Recipients:
    """Looks up each set of receivers, and each type that is subscribed to, once: a batch has few of them.

    For messages of one source, and for as long as nothing is awaited: receivers come and go.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._problems: dict[tuple[str, ...] | str | None, Problem | None] = {}

    def problem(self, message: Message) -> Problem | None:
        """The problem with the receivers of `message`, if there is one."""
        names = message.receivers
        key = message.event_type if names is None else names
        if key not in self._problems:
            find = self._subscribers_problem if names is None else self._names_problem
            self._problems[key] = find(message)
        problem = self._problems[key]
        return self._id_problem(message, names[0]) if problem is None and names and len(names) == 1 else problem

    def _id_problem(self, message: Message, name: str) -> Problem | None:
        """With several receivers the others get the message, and only the delivery to this one fails."""
        receiver = self._directory.receiver(name)
        if receiver is None or receiver.status_endpoint is None:
            return None
        fault = unaskable(receiver.status_endpoint, DeliveryId(name, message.source_id, message.message_id))
        return None if fault is None else Problem(UNFIT_ID, f"{fault}. The message was not accepted.")

    def _may_be_named(self, name: str, source_id: str) -> bool:
        receiver = self._directory.receiver(name)
        return self._directory.refusal(name) is not None if receiver is None else may_name(receiver, source_id)

    def _names_problem(self, message: Message) -> Problem | None:
        unknown = [name for name in message.receivers or () if not self._may_be_named(name, message.source_id)]
        if not unknown:
            return None
        errors = tuple({"detail": f"there is no receiver {name}", "parameter": "receiver"} for name in unknown)
        detail = f"Unknown: {', '.join(unknown)}. The message was not accepted."
        return Problem(UNKNOWN_RECEIVER, detail, errors=errors)

    def _subscribers_problem(self, message: Message) -> Problem | None:
        try:
            if self._directory.subscribers(message.source_id, message.event_type):
                return None
        except InvalidRecord as error:
            return problem_of(error)
        return Problem(NO_RECEIVER, "No receiver subscribes to this source and type; name receivers with ?receiver=.")
