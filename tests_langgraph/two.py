"""What the tests run in processes of their own: python -m tests_langgraph.two WHAT LOG ..."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from accord.langgraph import AccordSaver
from tests_langgraph.graphs import Talk, config


def write_many(log: str, thread: str, count: str) -> None:
    """Save ``count`` writes of this process to one checkpoint."""
    saver = AccordSaver(log)
    for number in range(int(count)):
        saver.put_writes(
            config(thread, checkpoint_id="0"), [("x", number)], f"{os.getpid()}/{number}"
        )


def hold(log: str) -> None:
    """Hold the thread until the parent closes our input."""
    with AccordSaver(log).hold("1"):
        print("held", flush=True)
        sys.stdin.read()


def die_writing(log: str) -> None:
    """Be killed with the lease in hand."""
    saver = AccordSaver(log)
    saver.put(config(), empty_checkpoint(), {}, {})
    saver.store.append = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    saver.put(config(), empty_checkpoint(), {}, {})


STEPS = 5


def effects(folder: Path) -> StateGraph:
    """Five steps, each of which does something outside."""

    def step(state: Talk) -> dict[str, list[str]]:
        name = f"step {len(state['messages'])}"
        with (folder / "effects").open("a") as out:
            out.write(f"{name}\n")
        return {"messages": [name]}

    builder = StateGraph(Talk)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: "step" if len(state["messages"]) < STEPS else "__end__"
    )
    return builder


def go_on(folder: Path, die_at: int | None, *, before: bool) -> None:
    """Run or resume; be killed at the ``die_at``-th write, before or after it is in the log."""
    saver = AccordSaver(folder / "log.sqlite3")
    append = saver.store.append
    count = 0

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == die_at and before:
            os.kill(os.getpid(), signal.SIGKILL)
        append(*args)
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    saver.store.append = counted  # type: ignore[method-assign]
    graph = effects(folder).compile(checkpointer=saver)
    begun = graph.get_state(config()).created_at is not None
    graph.invoke(None if begun else {"messages": []}, config(), durability="sync")


def campaign(folder: str) -> None:
    """Kill at every write, before and after; print how often each effect came."""
    for before in (True, False):
        for die_at in range(1, 100):
            here = Path(folder) / f"{before}-{die_at}"
            here.mkdir()
            died = in_child(partial(go_on, here, die_at, before=before))
            assert in_child(partial(go_on, here, None, before=False)) == 0
            print(before, die_at, (here / "effects").read_text().split("\n")[:-1], sep="|")
            if died == 0:
                break


def in_child(act: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
