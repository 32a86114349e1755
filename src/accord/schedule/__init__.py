"""Who may ask the engine now: policies, limits, budgets."""
