"""The optimised trainer and what is measured of it; the only place where torch is imported."""
