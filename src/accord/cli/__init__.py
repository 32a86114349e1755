"""The command line: :mod:`accord.cli.main` parses, one module a command does the work."""
