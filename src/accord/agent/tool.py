"""``@tool``: a function that an agent may choose to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from accord.agent.context import render
from accord.engine.base import ToolCall, ToolSpec
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.scope import Scope
from accord.flow.step import in_thread

P = ParamSpec("P")
T = TypeVar("T")


class InvalidArgumentsError(ValueError):
    """The model's arguments do not fit the tool; the message tells the model why."""


class Tool(Generic[P, T]):
    """A function with the schema by which models call it."""

    def __init__(
        self, function: Callable[P, T], *, name: str, pure: bool, timeout_s: float | None
    ) -> None:
        update_wrapper(self, function)
        self.name = name
        self.pure = pure
        self.timeout_s = timeout_s
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._arguments = _arguments_type(function, name)
        schema = msgspec.json.schema(self._arguments, ref_template="#/$defs/{name}")
        definitions = schema.pop("$defs")
        parameters = definitions.pop(self._arguments.__name__)
        parameters.pop("title", None)
        if definitions:
            parameters["$defs"] = definitions
        self.spec = ToolSpec(
            name=name, description=inspect.cleandoc(function.__doc__ or ""), parameters=parameters
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The plain function."""
        return self._function(*args, **kwargs)

    def arguments(self, text: str) -> dict[str, Any]:
        """The keyword arguments in a model's JSON; raises :class:`InvalidArgumentsError`."""
        try:
            parsed = msgspec.json.decode(text.encode("utf-8", "replace"), type=self._arguments)
        except msgspec.DecodeError as error:
            raise InvalidArgumentsError(str(error)) from error
        return {name: getattr(parsed, name) for name in self._arguments.__struct_fields__}

    async def answer(self, asked: ToolCall) -> str:
        """Call the tool as the model asked, recorded, and give the text for the model."""
        arguments = self.arguments(asked.arguments)
        return render(
            await call(
                "tool",
                self.name,
                [arguments],
                partial(self._work, arguments),
                pure=self.pure,
                keep_input=True,
                timeout_s=self.timeout_s,
            )
        )

    async def _work(self, arguments: dict[str, Any], scope: Scope) -> Any:
        if self._is_async:
            function: Any = self._function
            return await function(**arguments)
        work: Callable[[], Any] = partial(self._function, **arguments)
        return await in_thread(scope, work)


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    pure: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Make a function a tool, as ``@tool`` or ``@tool(pure=True, ...)``.

    Its type hints become the schema and its docstring the description. ``pure`` and
    ``timeout_s`` are as for :func:`accord.step`.
    """
    if function is None:
        return partial(tool, name=name, pure=pure, timeout_s=timeout_s)
    return Tool(function, name=name or function.__name__, pure=pure, timeout_s=timeout_s)


def _arguments_type(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    hints = get_type_hints(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            msg = f"tool {name}: a model cannot fill *{parameter.name}; name each parameter"
            raise UsageError(msg)
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    try:
        return msgspec.defstruct(f"{name}_arguments", fields, kw_only=True)
    except TypeError as error:
        msg = f"tool {name}: {error}"
        raise UsageError(msg) from error
