"""An MCP server without ``mcp``: quick to start, and it misbehaves on demand.

``mcp_server_plain.py JOURNAL`` appends each call of ``charge`` to the file JOURNAL.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

JOURNAL = Path(sys.argv[1])
SCHEMA = {"type": "object", "properties": {"value": {"type": "string"}}}


def tool(name: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": read_only}}


PAGES = {
    None: {"tools": [tool("charge"), tool("look", read_only=True)], "nextCursor": "more"},
    "more": {"tools": [tool("pid"), tool("die"), tool("hang")]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            return PAGES[params.get("cursor")]
        case "tools/call":
            text = act(params["name"], params.get("arguments", {}))
            return {"content": [{"type": "text", "text": text}]}
        case _:
            return None


def act(name: str, arguments: dict[str, Any]) -> str:
    match name:
        case "charge":
            with JOURNAL.open("a") as journal:
                journal.write(f"{arguments['value']}\n")
            return f"charged {arguments['value']}"
        case "look":
            return os.environ.get("ACCORD_TEST_KEY", "")
        case "die":
            print("Lebt wohl", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.pause()
        case _:
            pass
    return str(os.getpid())


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    unknown = {"code": -32601, "message": "no such method"}
    outcome = {"error": unknown} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
