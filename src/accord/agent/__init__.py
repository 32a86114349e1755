"""Agents: definitions, their prompts, their typed replies and tools."""
