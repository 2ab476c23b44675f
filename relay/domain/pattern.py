"""Regular expressions (RE2), matched within a budget of steps, because a single one can take seconds."""

from functools import lru_cache
from threading import local
from typing import Any, Final

from relay.domain.errors import RelayError

MOST_STEPS: Final = 32_000_000
"""Steps of a budget, of some 4 ns: bytes of the text times instructions of the pattern."""
_FOR_PATTERN: Final = 20_000
"""Steps that the compilation of a pattern counts for, and for each of its instructions a hundredth of that."""


class TooManySteps(RelayError):
    """The budget is spent."""


class StepBudget(local):
    """A context manager: all patterns matched within have one budget, also those of contexts within it. Each thread has
    its own, because a receivers file is read in one."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self._most = most
        self._depth = 0
        self._left = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._left = self._most
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1

    def spend(self, steps: int) -> None:
        """Raises TooManySteps."""
        self._left -= steps
        if self._left < 0:
            raise TooManySteps("its patterns take too long for texts of this size")


step_budget: Final = StepBudget()
"""One is enough for a thread, because nothing awaits within it."""


def is_found(pattern: str, text: str) -> bool:
    """Whether some part of `text` matches. Needs `step_budget`. Raises ValueError, and TooManySteps."""
    compiled = compiled_pattern(pattern)
    step_budget.spend(len(text.encode()) * compiled.programsize)
    return compiled.search(text) is not None


@lru_cache(maxsize=256)
def compiled_pattern(pattern: str) -> Any:
    """Takes steps only if it is compiled. Raises as `is_found`."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    step_budget.spend(_FOR_PATTERN)
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0]
        why = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise ValueError(f"invalid regular expression: {why}") from None
    step_budget.spend(compiled.programsize * _FOR_PATTERN // 100)
    return compiled
