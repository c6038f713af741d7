"""Samples the machine while a trial runs: probes, a sampler and summaries."""
