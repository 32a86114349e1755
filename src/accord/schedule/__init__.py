"""Who may ask the engine now."""
