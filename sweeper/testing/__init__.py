"""Provides the conformance suites of the seams."""
