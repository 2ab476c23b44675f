"""A response of the API, as the commands read it."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PROBLEM: Final = "application/problem+json"


class Reply(NamedTuple):
    """A response, its body read as text."""

    status: int
    headers: Mapping[str, str]
    media_type: str
    text: str

    @property
    def is_problem(self) -> bool:
        return self.media_type == PROBLEM

    @property
    def document(self) -> Any:
        """Its JSON; None if it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def letter(self) -> str | None:
        """The place of the dead letter that a failed delivery's problem links to."""
        problem = self.document if self.is_problem else None
        link = problem.get("dead_letter") if isinstance(problem, dict) else None
        return link.removeprefix("/v1/failed/") if isinstance(link, str) else None


def problem_line(problem: Mapping[str, Any]) -> str:
    """A problem in one line."""
    return f"{problem.get('title', '')}: {problem.get('detail', '')}".strip(": ")
