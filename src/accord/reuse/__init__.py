"""Never compute twice, and start early: results kept, prompts read ahead, guesses scored."""
