"""Accord: a multi-agent runtime that treats collaboration overhead as the thing to engineer away.

A run is one append-only log of events, each naming what caused it; everything else is read
off that log. Layers, each importing only those below it::

    cli         the command line
    demo        the reports that `accord demo` writes, small and large; the large one compared
    testing     a scripted engine, a stub server, conformance suites
    langgraph   LangGraph's checkpointer on the log
    graph       state graphs
    once        one run with a runtime of its own
    runtime     the only wiring; results, streaming
    team        group chat, crews
    agent       what an agent is, and the prompt that it sees; tools
    sync        gather, hedging, pipelines, actors, events
    comm        blackboard, mailboxes, memory, questions to people
    flow        scopes, calls, replay, forks: the one door out
    reuse       results kept, and whether guessing pays
    schedule    who may ask the engine now: policies, limits, budgets
    observe     exchanges, ledger, critical path, tax: reads the log
    log         events, codec, blobs, cursor, fold, stores
    tokens      counting, encodings, differences, summaries
    engine      the one-method door to inference
    clock       wall and virtual time
    errors      one tree
"""

from accord._version import __version__
from accord.agent.agent import Agent
from accord.agent.ending import Ending
from accord.agent.retry import Retry
from accord.agent.tool import tool
from accord.comm.blackboard import Blackboard
from accord.comm.interrupt import interrupt
from accord.comm.mailbox import Mailbox, ask, send
from accord.engine.base import Prices
from accord.errors import AccordError
from accord.flow.sleep import sleep
from accord.flow.step import idempotency_key, step
from accord.once import aresume, arun, resume, run, stream
from accord.reuse.results import caching
from accord.runtime import Result, Runtime
from accord.sync.gather import gather
from accord.sync.hedge import Hedge
from accord.sync.speculate import speculate
from accord.tokens.split import split_text

__all__ = [
    "AccordError",
    "Agent",
    "Blackboard",
    "Ending",
    "Hedge",
    "Mailbox",
    "Prices",
    "Result",
    "Retry",
    "Runtime",
    "__version__",
    "aresume",
    "arun",
    "ask",
    "caching",
    "gather",
    "idempotency_key",
    "interrupt",
    "resume",
    "run",
    "send",
    "sleep",
    "speculate",
    "split_text",
    "step",
    "stream",
    "tool",
]
