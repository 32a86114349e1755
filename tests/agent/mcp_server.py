"""An MCP server for the tests, on whatever release of ``mcp`` is installed.

``mcp_server.py`` talks over stdin and stdout, ``mcp_server.py PORT`` over HTTP.
"""

import importlib
import os
import signal
import sys
from functools import partial
from typing import Any

import anyio
from mcp.types import EmbeddedResource, ImageContent, TextContent

PORT = {"port": int(sys.argv[1])} if sys.argv[1:] else {}

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # 1.x
    fastmcp: Any = importlib.import_module("mcp.server.fastmcp")
    ToolError = importlib.import_module("mcp.server.fastmcp.exceptions").ToolError
    server = fastmcp.FastMCP("tests", **PORT)
    serve_http = partial(server.run, "streamable-http")
else:
    server = MCPServer("tests")
    serve_http = partial(server.run, "streamable-http", **PORT)


@server.tool()
def echo(text: str, times: int = 1) -> str:
    """Wiederholt – 繰り返す 🌟."""
    return text * times


@server.tool()
def point(x: int) -> dict[str, Any]:
    """A point."""
    return {"x": x, "label": "原点"}


@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise ToolError(why)


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text, an image and a file."""
    image = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    file = {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "QUI="}
    return [
        TextContent(type="text", text="see"),
        ImageContent.model_validate(image),
        EmbeddedResource.model_validate({"type": "resource", "resource": file}),
    ]


@server.tool()
async def wait(seconds: float, answer: str) -> str:
    """Answers late."""
    await anyio.sleep(seconds)
    return answer


@server.tool()
async def hang() -> str:
    """Never answers."""
    await anyio.sleep_forever()
    return ""


@server.tool()
def die() -> str:
    """Kills the server."""
    print("worte zum Abschied", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    return ""


if PORT:
    serve_http()
else:
    server.run()
