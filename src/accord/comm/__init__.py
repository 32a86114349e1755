"""Blackboard, messages and memory: folds and cursors over the log of a run."""
