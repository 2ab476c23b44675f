"""Lists that come page by page: how long a page is, and where the next one begins."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from relay.api.problems import invalid
from relay.domain.identity import base64url

MOST: Final = 1_000
USUAL: Final = 50
"""Items of a page whose length was not asked for."""

_T = TypeVar("_T")
Rank = tuple[float, str]


def limit_in(text: str) -> int:
    """The maximum number of items of a page. Raises a Problem."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 0 < int(text) <= MOST):
        raise invalid(f"limit is {text[:20]!r}; a number from 1 to {MOST} is allowed", parameter="limit")
    return int(text)


def cursor_behind(key: str) -> str:
    """The cursor of a sorted list after a page that ends with `key`. It stays valid when items are added or removed."""
    return base64url(key.encode())


def key_behind(text: str) -> str:
    """The key in such a cursor. Raises a Problem."""
    try:
        return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("cursor was not issued by this API", parameter="cursor") from None


def cursor_at(rank: Rank) -> str:
    made_at, id = rank
    return f"{made_at}_{id}"


class NewestFirstPages:
    """Pages of a list sorted by rank: the creation time (Unix seconds) and the id of an item. The cursor is the rank of
    the last item of a page, so it stays valid when items are added or removed. `id`: the pattern of an id."""

    def __init__(self, id: str) -> None:
        self.cursor: Final = re.compile(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?)_({id})")

    def page(
        self, limit: int, behind: Rank | None, all_of_them: Iterable[_T], rank: Callable[[_T], Rank]
    ) -> tuple[list[_T], str | None]:
        """At most `limit` of the sorted `all_of_them` after a rank, and the cursor of the next page, if there is
        one."""
        left = [one for one in all_of_them if behind is None or rank(one) < behind]
        if len(left) <= limit:
            return left, None
        return left[:limit], cursor_at(rank(left[limit - 1]))

    def behind(self, text: str) -> Rank:
        """The rank in a cursor. Raises ValueError."""
        found = self.cursor.fullmatch(text)
        if found is None:
            raise ValueError("which was not issued by this API")
        return float(found[1]), found[2]
