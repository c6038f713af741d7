"""Defines the vocabulary: frozen dataclasses with units, and their wire format. Standard library only."""
