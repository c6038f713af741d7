"""The supervisor: ask -> run -> record -> tell -> track, over the journal of the sweep folder."""
