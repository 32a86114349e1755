"""Resume after a crash: what finished before it is not done again.

Run: ``python examples/resume.py``. A first process dies in the middle of the run; this one
goes on with it. Prints::

    first process died with exit code 9
    steps done by the first process: prepare, research
    steps done by the second process: write
    output: prepare, research, write
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from accord import resume, run, step

done: list[str] = []


@step(pure=True)
async def work(name: str) -> str:
    await asyncio.sleep(0.01)
    if name == "write" and "DIE" in os.environ:
        print(", ".join(done), flush=True)
        os._exit(9)  # as kill -9 does: no clean-up, no goodbye
    done.append(name)
    return name


async def flow() -> str:
    return ", ".join([await work(name) for name in ("prepare", "research", "write")])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.sqlite3"
        first = subprocess.run(  # noqa: S603
            [sys.executable, __file__, str(log)],
            env={**os.environ, "DIE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"first process died with exit code {first.returncode}")
        print(f"steps done by the first process: {first.stdout.strip()}")
        result = resume("example", flow, log=log, engine="local")
        print(f"steps done by the second process: {', '.join(done)}")
        print(f"output: {result.output}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(flow, run_id="example", log=sys.argv[1], engine="local")
    else:
        main()
