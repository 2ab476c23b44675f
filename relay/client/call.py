"""Declarations of the client's methods: each names a route of the API, its parameters and its response, once.

The signature says the rest: a parameter in braces in the path goes there, `etag` is sent as If-Match, `changes` is the
whole body, as a merge patch. With `everything`, an empty selection is refused unless that is true. The others are the
query of a GET or DELETE, and the fields of the body of a POST. One declaration serves both clients: a method of
`Asyncio` returns a coroutine, one of `Blocking` its result.
"""

import asyncio
import functools
import inspect
import json
import os
import re
import secrets
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_type_hints, overload

from relay.client.connections import CLOSED
from relay.client.errors import ClientError, InvalidArgument
from relay.client.http import JSON, MERGE_PATCH, ApiResponse, Http, decoded, path

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")

_END_S: Final = 5.0
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_OWN: Final = ("etag", "changes", "everything")
"""Parameters of a method that are not of the route."""
_SELECT_NOTHING: Final = frozenset({"rate", "only_failed"})
"""Fields of a selection that do not restrict it."""


class Asyncio:
    """Marks a client whose methods return coroutines and async iterators."""


class Blocking:
    """Marks a client whose methods block, and return iterators."""


class Loop:
    """An event loop in a thread of its own, from the first call until it is closed, at the latest when the program
    ends. `closing`: what the loop runs last. A forked process, which does not inherit threads, starts its own."""

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._closing = closing
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self.closed = False
        _loops.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:  # it would wait for itself
            coroutine.close()
            raise ClientError("the client cannot be called from a callback of its own: take another client there")
        future = self._submit(coroutine)
        try:
            return future.result()
        except CancelledError:  # by the loop's end
            raise ClientError(CLOSED) from None
        except BaseException:  # Ctrl-C must not leave the request in progress
            future.cancel()
            raise

    def run_later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Takes no lock and does not wait: the garbage collector calls it in any thread, also in the loop's."""
        try:
            asyncio.run_coroutine_threadsafe(coroutine, cast(asyncio.AbstractEventLoop, self._loop))
        except (AttributeError, RuntimeError):  # there is no loop, or it is closed
            coroutine.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            if self._end is not None:
                self._end()

    def forget(self) -> None:
        """After a fork: the thread is missing, and the lock may be held by another one that is missing, too."""
        self._lock = threading.Lock()
        self._loop = None
        if self._end is not None:
            self._end.detach()
            self._end = None

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:  # so that it is in the loop before the loop's end is
            if self.closed:
                coroutine.close()
                raise ClientError(CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="relay-client", daemon=True)
                self._thread.start()
                self._end = weakref.finalize(self, _end, self._loop, self._thread, self._closing)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


_loops: Final[weakref.WeakSet[Loop]] = weakref.WeakSet()


def _forget_loops() -> None:
    for loop in list(_loops):
        loop.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_loops)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _end(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, closing: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    asyncio.run_coroutine_threadsafe(_stop(closing), loop)
    if thread is not threading.current_thread():  # the garbage collector runs in any thread
        thread.join(_END_S)


async def _stop(closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancels unfinished calls, whose callers would wait forever, runs `closing`, and stops the loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    try:
        await asyncio.gather(*others, return_exceptions=True)
        await closing()
    finally:
        asyncio.get_running_loop().stop()


class Resource(Generic[M]):
    """A group of methods. `loop`: the one that a blocking client runs in; None: the caller's."""

    def __init__(self, http: Http, loop: Loop | None = None) -> None:
        self._http = http
        self._loop = loop

    def in_asyncio(self) -> "Resource[Asyncio]":
        """The same resource for code that runs in the loop."""
        return cast(type[Resource[Asyncio]], type(self))(self._http)


class Method(Generic[P, T]):
    """A method of both clients, written as a coroutine function."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        functools.update_wrapper(cast(Any, self), function, updated=())

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Asyncio], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, resource: Resource[Blocking], owner: type) -> Callable[P, T]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        return functools.partial(self._call, resource)

    def _call(self, resource: Resource[Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T] | T:
        loop = resource._loop
        if loop is None:
            return self._function(resource, *args, **kwargs)
        return loop.run(self._function(resource.in_asyncio(), *args, **kwargs))


class Iteration(Generic[P, T]):
    """An iterator of both clients, written as an async generator function."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._function = function
        functools.update_wrapper(cast(Any, self), function, updated=())

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Asyncio], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, resource: Resource[Blocking], owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        return functools.partial(self._call, resource)

    def _call(self, resource: Resource[Any], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T] | Iterator[T]:
        loop = resource._loop
        if loop is None:
            return self._function(resource, *args, **kwargs)
        return iterated(loop, self._function(resource.in_asyncio(), *args, **kwargs))


def iterated(loop: Loop, items: AsyncIterator[T]) -> Iterator[T]:
    end = object()

    async def following() -> T | object:
        return await anext(items, end)

    async def close() -> None:
        if isinstance(items, AsyncGenerator):
            await items.aclose()

    try:
        while (item := loop.run(following())) is not end:
            yield cast(T, item)
    finally:
        loop.run_later(close())


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared request. `safe`: may be repeated. `in_query`: parameters outside the path are the query, not the body.
    `fixed`: parameters that the caller does not give. `accepted`: error statuses that are a response here. `keyed`: all
    repetitions of a request have one `Idempotency-Key`."""

    method: str
    path: str
    safe: bool
    in_query: bool
    signature: inspect.Signature
    fixed: Mapping[str, object] = field(default_factory=dict)
    accepted: Collection[int] = ()
    keyed: bool = False

    @property
    def parameters(self) -> Iterator[str]:
        """Names of the query's parameters or of the body's fields, without those of an untyped `**fields`."""
        yield from self.fixed
        for name, parameter in list(self.signature.parameters.items())[1:]:
            for fields in get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else ():
                yield from get_type_hints(fields)
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in (*self._in_path, *_OWN):
                yield name

    @property
    def _in_path(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    async def send(self, http: Http, args: tuple[object, ...], kwargs: Mapping[str, object]) -> ApiResponse:
        bound = self.signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        extra = [name for name, one in self.signature.parameters.items() if one.kind is one.VAR_KEYWORD]
        more = {name: value for each in extra for name, value in given.pop(each).items()}
        places = [given.pop(name) for name in self._in_path]
        etag, changes = given.pop("etag", None), given.pop("changes", None)
        if given.pop("everything", None) is False and all(more[name] is None for name in more.keys() - _SELECT_NOTHING):
            raise InvalidArgument("no selection is given: everything=True selects all")
        named = {name: value for name, value in given.items() if value is not None} | more | dict(self.fixed)
        others = {name: listed(value) for name, value in named.items()}
        document = changes if changes is not None else None if self.in_query else others or None
        headers = [] if etag is None else [("if-match", f'"{etag}"')]
        if self.keyed:
            headers.append(("idempotency-key", secrets.token_hex(16)))
        return await http.request(
            self.method,
            path(_PARAMETER.sub("{}", self.path), *places),
            query=others if self.in_query else None,
            body=None if document is None else json.dumps(document, default=str).encode(),
            content_type=JSON if changes is None else MERGE_PATCH,
            headers=headers,
            safe=self.safe,
            accepted=self.accepted,
        )


class ApiCall(Method[P, T]):
    """The method for a declared route."""

    def __init__(self, stub: Callable[Concatenate[Any, P], T], declared: Declared) -> None:
        self.declared = declared
        self._stub = stub

        async def call(resource: Resource[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
            response = await declared.send(resource._http, args, kwargs)
            return cast(T, response) if self.kind is ApiResponse else decoded(self.kind, response)

        functools.update_wrapper(call, stub)
        super().__init__(call)

    @functools.cached_property
    def kind(self) -> type[T]:
        """The type of the response."""
        return cast(type[T], get_type_hints(self._stub)["return"])


def route(
    method: str,
    path: str,
    *,
    safe: bool | None = None,
    in_query: bool | None = None,
    fixed: Mapping[str, object] = _NOTHING,
    accepted: Collection[int] = (),
    keyed: bool = False,
) -> Callable[[Callable[Concatenate[Any, P], T]], ApiCall[P, T]]:
    """Declares a method by its signature, which has no body. `safe`: default of a GET. `in_query`: default of all but
    POST."""

    def declare(stub: Callable[Concatenate[Any, P], T]) -> ApiCall[P, T]:
        return ApiCall(
            stub,
            Declared(
                method,
                path,
                method == "GET" if safe is None else safe,
                method != "POST" if in_query is None else in_query,
                inspect.signature(stub),
                fixed,
                accepted,
                keyed,
            ),
        )

    return declare


def listed(value: object) -> object:
    """A list of any iterable, such as a set or a generator; texts and mappings as they are."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else value


def every(page: ApiCall[P, Any], kind: type[T]) -> Iteration[P, T]:
    """The items of all pages of a list, requested as they are needed. `limit` is the size of a page."""

    async def items(resource: Resource[Asyncio], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        ask = cast(Callable[..., Coroutine[Any, Any, Mapping[str, Any]]], page.__get__(resource, type(resource)))
        kwargs.update({name: listed(value) for name, value in kwargs.items()})  # each page repeats them
        while True:
            found = await ask(*args, **kwargs)
            for item in found["items"]:
                yield item
            if found["cursor"] is None:
                return
            kwargs["cursor"] = found["cursor"]

    functools.update_wrapper(items, cast(Any, page), updated=())
    return Iteration(items)
