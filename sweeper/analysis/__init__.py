"""Facts about a sweep, computed from its records. Prints nothing."""
