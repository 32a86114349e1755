"""``@tool``: a function that an agent may choose to call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, get_type_hints

import msgspec

from accord.agent.reused import Keeping, reused
from accord.engine.base import ToolCall, ToolSpec
from accord.errors import UsageError
from accord.flow.call import Measured, call
from accord.flow.function import RecordedFunction
from accord.flow.scope import CallScope
from accord.flow.suspend import plain_json
from accord.reuse.key import tool_key
from accord.reuse.results import Mode, mode_for
from accord.tokens.encode import encode

Keep = Callable[[dict[str, Any], Any], object]
"""Whether the result of a tool's call may serve equal calls, from its arguments and itself."""
P = ParamSpec("P")
T = TypeVar("T")


class InvalidArgumentsError(ValueError):
    """The model's arguments do not fit the tool; the message tells the model why."""


class Tool(RecordedFunction[P, T]):
    """A function with the schema by which models call it.

    With a ``spec`` of its own, whoever made that checks the arguments: here, any JSON object.
    """

    def __init__(
        self,
        function: Callable[P, T],
        *,
        name: str = "",
        pure: bool = False,
        timeout_s: float | None = None,
        spec: ToolSpec | None = None,
        delegates: bool = False,
        cache: bool | Keep = True,
    ) -> None:
        super().__init__(function, name=name, pure=pure, timeout_s=timeout_s)
        if not isinstance(cache, bool) and not callable(cache):
            raise UsageError(f"tool {self.name}: cache is a bool or a function, not {cache!r}")
        self.cache = cache
        """What of its results may serve equal calls, where they are to be cached at all."""
        self.delegates = delegates
        """What it calls may have effects, though it has none itself."""
        self._arguments: Any = dict[str, Any]
        if spec is None:
            self._arguments = _arguments_type(function, self.name)
            spec = ToolSpec(
                name=self.name,
                description=inspect.cleandoc(function.__doc__ or ""),
                parameters=_parameters(self._arguments),
            )
        self.spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The plain function."""
        return self.function(*args, **kwargs)

    def arguments(self, text: str) -> dict[str, Any]:
        """The keyword arguments in a model's JSON; raises :class:`InvalidArgumentsError`."""
        try:
            parsed = msgspec.json.decode(text.encode("utf-8", "replace"), type=self._arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArgumentsError(str(error)) from error
        found: dict[str, Any] = (
            msgspec.structs.asdict(parsed) if isinstance(parsed, msgspec.Struct) else parsed
        )
        return found

    async def answer(self, asked: ToolCall, cache: Mode | None = None) -> str:
        """Call the tool as the model asked, recorded, and give the text for the model.

        ``cache`` is what its agent was given.
        """
        arguments = self.arguments(asked.arguments)
        body = self.body((), arguments)

        async def reusing(scope: CallScope) -> Any:
            result = reusable_tool(self, arguments, scope, cache)
            if result is None:
                return await body(scope)

            async def make() -> Measured:
                return Measured(await body(scope))

            return await reused(result, scope, make)

        return shown(
            await call(
                "tool",
                self.name,
                [arguments],
                reusing,
                pure=self.pure,
                keep_input=True,
                timeout_s=self.timeout_s,
            )
        )


def shown(result: Any) -> str:
    """What a tool returned, as a model reads it."""
    if not isinstance(result, bytes | bytearray):
        return encode(result)
    try:
        return bytes(result).decode()
    except UnicodeDecodeError:
        return f"[{len(result)} bytes that are no text]"


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    pure: bool = False,
    timeout_s: float | None = None,
    cache: bool | Keep = True,
) -> Any:
    """Make a function a tool, as ``@tool`` or ``@tool(pure=True, ...)``.

    Its type hints become the schema and its docstring the description. ``pure`` and
    ``timeout_s`` are as for :func:`accord.step`.

    ``cache`` is a veto: with False, or where ``cache(arguments, result)`` is false, a result serves
    no other call. Others serve equal calls of agents with ``cache="on"``, of a pure tool that is a
    plain function of a module, whose result is plain JSON data, and that looks at nothing of the
    run: no board, no other calls.
    """
    if function is None:
        return partial(tool, name=name, pure=pure, timeout_s=timeout_s, cache=cache)
    return Tool(function, name=name, pure=pure, timeout_s=timeout_s, cache=cache)


def reusable_tool(
    tool: Tool[..., Any], arguments: dict[str, Any], scope: CallScope, asked_for: Mode | None
) -> Keeping | None:
    """How a call of a tool is kept; None if it is not to be."""
    execution, keep = scope.execution, tool.cache
    mode = mode_for(asked_for, execution.cache_mode)
    if mode in (None, "off") or not tool.pure or tool.delegates or keep is False:
        return None
    key = tool_key(tool.function, arguments, execution.schedulers.tenant)
    if key is None:
        return None

    def pack(measured: Measured) -> bytes | None:
        if scope.children:  # it depends on more than its arguments: on the run
            return None
        if callable(keep) and not _says_yes(keep, arguments, measured.value, tool.name):
            return None
        try:
            return plain_json(measured.value, "a result")
        except UsageError:
            return None

    return Keeping(
        key=key, mode=mode, kind="tool", name=tool.name, pack=pack, unpack=msgspec.json.decode
    )


def _says_yes(keep: Keep, arguments: dict[str, Any], result: Any, name: str) -> bool:
    try:
        return bool(keep(arguments, result))
    except Exception as error:  # noqa: BLE001  # the call has succeeded all the same
        told = f"tool {name}: cache(arguments, result) failed ({error!r}): its result is not kept"
        warnings.warn(told, stacklevel=2)
        return False


def _arguments_type(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool {name}: a model cannot fill *{parameter.name}; name each one")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    try:
        return msgspec.defstruct(
            f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
    except TypeError as error:
        raise UsageError(f"tool {name}: {error}") from error


def _parameters(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of an object, with what it refers to inside."""
    schema = msgspec.json.schema(arguments)
    definitions: dict[str, Any] = schema["$defs"]
    parameters: dict[str, Any] = definitions.pop(arguments.__name__)
    parameters.pop("title", None)
    return {**parameters, "$defs": definitions} if definitions else parameters
