"""The supervisor: ask, run, record, tell, track, over the journal in the sweep folder."""
