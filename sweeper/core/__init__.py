"""The vocabulary: frozen dataclasses, units and the wire format; standard library alone."""
