"""Telemetry of the host: the whole machine, and the trial's process tree."""
