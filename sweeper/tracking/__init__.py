"""Showing a sweep in MLflow; a projection of the folder, never read back."""
