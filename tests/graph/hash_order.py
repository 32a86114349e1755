"""Prints the log of a graph whose router returns a set."""

from accord.graph import START
from tests.graph.programs import nodes, result_of

NAMES = [f"name{number}" for number in range(8)]


def main() -> None:
    graph = nodes(**dict.fromkeys(NAMES, 10.0))
    graph.add_conditional_edges(START, lambda _: set(NAMES))
    result = result_of(graph.compile(), {})
    for envelope in result.log.envelopes[1:]:
        print(envelope.seq, envelope.scope, envelope.causes, type(envelope.event).__name__)
    print(result.output)


if __name__ == "__main__":
    main()
