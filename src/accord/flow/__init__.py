"""The one door out: calls, their places in the flow, and their answers from the log."""
