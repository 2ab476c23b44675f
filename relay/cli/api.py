"""Calls of the API by the commands: their options, where the API is, and its errors in a line."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypedDict, TypeVar, cast

from relay import __version__
from relay.cli.options import api_option, config_option, options, output_option, settings_from
from relay.cli.table import print_json, print_more, print_table, show_as
from relay.config.entry_types import check_url
from relay.config.own_address import own_url
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError

if TYPE_CHECKING:
    from relay.client import AsyncRelay

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
PAGE: Final = 500
"""Items of a page of a list that is printed in full."""


@dataclass(frozen=True)
class ApiOptions:
    """The options of a command that calls the API."""

    api: str | None
    config_file: Path | None
    output: str

    @cached_property
    def settings(self) -> Settings:
        """Raises UserError."""
        return settings_from(self.config_file)

    @property
    def is_json(self) -> bool:
        return self.output == "json"

    def client(self, timeout_s: float = TIMEOUT_S) -> "AbstractAsyncContextManager[AsyncRelay]":
        """A client of the relay. Raises UserError for an invalid URL."""
        return api_client(api_base(self.settings, self.api), key_in(self.settings), timeout_s)

    def run(self, work: "Callable[[AsyncRelay], Awaitable[T]]", *, timeout_s: float = TIMEOUT_S) -> T:
        """The result of `work` with a client; a request may take `timeout_s`."""

        async def main() -> T:
            async with self.client(timeout_s) as client:
                return await work(client)

        return asyncio.run(main())

    def every(self, ask: "Callable[[AsyncRelay], AsyncIterator[T]]") -> list[T]:
        """All items of a list."""

        async def work(client: "AsyncRelay") -> list[T]:
            return [item async for item in ask(client)]

        return self.run(work)

    def show(self, value: T, describe: Callable[[T], None]) -> None:
        """Print a response as JSON, or for people."""
        show_as(value, self.output, describe)

    def show_list(
        self,
        ask: "Callable[[AsyncRelay], AsyncIterator[T]]",
        columns: Sequence[str],
        row: Callable[[T], Sequence[str]],
        *,
        hides: Callable[[T], bool] = lambda _item: False,
    ) -> None:
        """Print all items of a list but those that it `hides`."""
        found = [item for item in self.every(ask) if not hides(item)]
        self.show_page({"items": found, "cursor": None}, columns, row)

    def show_page(self, page: "_Page[T]", columns: Sequence[str], row: Callable[[T], Sequence[str]]) -> None:
        """Print a page of a list, and how to get the next one."""
        if self.is_json:
            print_json(page)
        else:
            print_table(columns, map(row, page["items"]))
            print_more(page["cursor"])


def with_api(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the values of --api, --config and -o by ApiOptions, the first argument."""

    @wraps(command)
    def called(*, api: str | None, config_file: Path | None, output: str = "table", **given: object) -> None:
        command(ApiOptions(api, config_file, output), **given)

    return called


def api_command(command: Callable[..., None]) -> Callable[..., None]:
    """Like `with_api`, and adds these options after those of the command."""
    return options(api_option, config_option, output_option)(with_api(command))


def api_base(settings: Settings, api: str | None) -> str:
    """The URL of the API: `--api`, else RELAY_API_URL, else the address of a relay with these settings on this machine.

    Raises UserError for an invalid URL.
    """
    if api is None:
        return settings.api_url or own_url(settings.api_host, settings.api_port)
    try:
        return check_url(api)
    except ValueError as error:
        raise UserError(f"--api: {api!r}: {error}; for example http://127.0.0.1:{settings.api_port}") from None


def key_in(settings: Settings) -> str | None:
    return settings.api_key.get_secret_value() if settings.api_key else None


@asynccontextmanager
async def api_client(url: str, key: str | None, timeout_s: float = TIMEOUT_S) -> "AsyncIterator[AsyncRelay]":
    """A client that makes each request once: the caller of a command repeats it."""
    import aiohttp  # commands that only read a file need no HTTP client

    from relay.client import AsyncRelay

    headers = {"user-agent": f"relay-cli/{__version__}"}
    async with aiohttp.ClientSession() as session:
        yield AsyncRelay(url, key or "", timeout_s=timeout_s, tries=1, session=session, headers=headers)


class _Page(TypedDict, Generic[T]):
    """The members that all pages of lists have."""

    items: list[T]
    cursor: str | None


async def if_known(asked: Awaitable[T]) -> T | None:
    """The result of a request; None if the relay does not know the resource."""
    from relay.client import ApiError

    try:
        return await asked
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def newest(ask: Callable[..., Awaitable[T]], limit: int, cursor: str | None, **query: object) -> T:
    """A page with `limit` items: a page of large items ends early, and the rest is requested from there."""
    items, page = list[object](), _Page[object](items=[], cursor=cursor)
    while len(items) < limit:
        page = cast(_Page[object], await ask(limit=limit - len(items), cursor=page["cursor"], **query))
        items += page["items"]
        if not page["cursor"]:
            break
    return cast(T, {**page, "items": items})


_INVALID_ENTRY: Final = ("invalid-receiver", "invalid-source", "invalid-event-type")
"""Problems of fields on the command line, or in a file that it names."""


def error_of(error: BaseException) -> RelayError | None:
    """The error of a client as the command reports it; None for another one."""
    from relay.client import ApiError, ClientError, InvalidArgument, NotARelay

    if not isinstance(error, ClientError):
        return None
    if isinstance(error, InvalidArgument) or (
        isinstance(error, ApiError) and (error.status == 400 or error.kind in _INVALID_ENTRY)
    ):
        return UserError(str(error))
    if isinstance(error, ApiError) and error.status == 404 and error.detail:
        return RelayError(error.detail)  # it names the missing thing, and where
    return RelayError(f"{error} Set it with --api or RELAY_API_URL" if type(error) is NotARelay else str(error))
