"""Asking Optuna for configurations and telling it what became of them; the only importer of optuna."""
