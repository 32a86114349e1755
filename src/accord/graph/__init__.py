"""State graphs: nodes that fire when their inputs are ready. :mod:`accord.graph.build` explains."""

from accord.graph.app import Graph
from accord.graph.build import StateGraph
from accord.graph.history import Snapshot
from accord.graph.schema import Overwrite, append
from accord.graph.shape import END, START, Command, Send

__all__ = [
    "END",
    "START",
    "Command",
    "Graph",
    "Overwrite",
    "Send",
    "Snapshot",
    "StateGraph",
    "append",
]
