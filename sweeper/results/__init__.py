"""Says in words what a sweep found, for everything that prints it."""
