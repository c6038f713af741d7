"""The vocabulary: frozen dataclasses, units, errors and the wire format; standard library alone."""
