"""Times steps: warm-up until steady, undisturbed windows, and the parts of a step on their own."""
