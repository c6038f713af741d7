"""Provides callbacks for training frameworks. Imports a framework only when its callback is requested."""
