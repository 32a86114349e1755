"""Stores of logs: memory, SQLite. ``accord.testing.conformance`` says what each must do."""
