"""Begins a sweep: its folder, its machine, its launcher, and what all phases are given."""
