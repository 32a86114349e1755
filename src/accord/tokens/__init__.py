"""Counting tokens."""
