"""The operating system: files, processes, cores, environment, secrets. Standard library alone."""
