"""Engines: one method wide, over HTTP, in this process, or a client of the user's."""
