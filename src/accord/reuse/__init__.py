"""Never compute twice: results kept; and whether it pays to guess."""
