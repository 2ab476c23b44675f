"""The client for programs without asyncio: the methods of `AsyncRelay`, each of which blocks until it is done."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from relay.client.async_client import AsyncMessages, AsyncReceivers, AsyncRelay, AsyncReplays

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class _Loop:
    """An event loop in a thread of its own, from the first call until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="relay-client", daemon=True)
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C must not leave the request in progress
            future.cancel()
            raise

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._thread is not None:
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Wrapped(Generic[A]):
    """An asyncio object, and the loop that its methods run in."""

    def __init__(self, loop: _Loop, wrapped: A) -> None:
        self._loop = loop
        self._async = wrapped


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["_Wrapped[A]", P], T]:
    """The method, run in the loop of its client."""

    @functools.wraps(method)
    def call(self: _Wrapped[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._async, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate["_Wrapped[A]", P], Iterator[T]]:
    """Likewise, of a method that yields."""

    @functools.wraps(method)
    def call(self: _Wrapped[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items, end = method(self._async, *args, **kwargs), object()

        async def following() -> T | object:
            return await anext(items, end)

        async def close() -> None:
            if isinstance(items, AsyncGenerator):
                await items.aclose()

        try:
            while (item := self._loop.run(following())) is not end:
                yield cast(T, item)
        finally:
            self._loop.run(close())

    return call


class Messages(_Wrapped[AsyncMessages]):
    """The messages of the relay: `Relay.messages`."""

    get = _blocking(AsyncMessages.get)
    list = _iterating(AsyncMessages.list)
    attempts = _iterating(AsyncMessages.attempts)
    payload = _blocking(AsyncMessages.payload)


class Receivers(_Wrapped[AsyncReceivers]):
    """The receivers of the relay: `Relay.receivers`."""

    get = _blocking(AsyncReceivers.get)
    list = _iterating(AsyncReceivers.list)
    create = _blocking(AsyncReceivers.create)
    update = _blocking(AsyncReceivers.update)
    delete = _blocking(AsyncReceivers.delete)
    pause = _blocking(AsyncReceivers.pause)
    resume = _blocking(AsyncReceivers.resume)
    test = _blocking(AsyncReceivers.test)
    verify = _blocking(AsyncReceivers.verify)
    rotate = _blocking(AsyncReceivers.rotate)
    stats = _blocking(AsyncReceivers.stats)
    attempts = _iterating(AsyncReceivers.attempts)


class Replays(_Wrapped[AsyncReplays]):
    """Jobs that replay or discard many dead letters: `Relay.replays`."""

    create = _blocking(AsyncReplays.create)
    discard = _blocking(AsyncReplays.discard)
    preview = _blocking(AsyncReplays.preview)
    get = _blocking(AsyncReplays.get)
    list = _iterating(AsyncReplays.list)
    stop = _blocking(AsyncReplays.stop)


class Relay(_Wrapped[AsyncRelay]):
    """A relay, by its HTTP API. Arguments, methods and errors are those of `AsyncRelay`; threads may share it."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout_s: float = 30.0, tries: int = 5
    ) -> None:
        super().__init__(_Loop(), AsyncRelay(url, key, timeout_s=timeout_s, tries=tries))
        self.messages = Messages(self._loop, self._async.messages)
        self.receivers = Receivers(self._loop, self._async.receivers)
        self.replays = Replays(self._loop, self._async.replays)

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._loop.run(self._async.close())
        self._loop.close()

    send = _blocking(AsyncRelay.send)
    wait = _blocking(AsyncRelay.wait)
    send_and_wait = _blocking(AsyncRelay.send_and_wait)
    replay = _blocking(AsyncRelay.replay)
    tail = _iterating(AsyncRelay.tail)
