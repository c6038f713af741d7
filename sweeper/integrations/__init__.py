"""Callbacks for training frameworks. No framework is imported before its callback is asked for."""
