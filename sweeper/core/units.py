"""The binary units of memory and traffic, in bytes."""

MIB, GIB = 2**20, 2**30
