"""Parts that stand in for real ones in tests and benchmarks, and conformance suites for the seams."""
