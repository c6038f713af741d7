"""Supervises a sweep: asks, runs, records, tells and tracks, over the journal in the sweep folder."""
