"""Provides stand-ins for tests and benchmarks, and the conformance suites of the seams."""
