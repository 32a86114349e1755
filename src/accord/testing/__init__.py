"""For users' tests and ours: a scripted engine, a stub server, conformance suites."""
