"""Users' training scripts, unmodified.

run      starts, watches, times and stops a script, where it can change nothing of the user's
inside   the hook in the script's own process
changes  what makes a script faster, applied in its process
patch    writes the changes into the user's files

`inside`, `changes` and `metering` run in the script's own interpreter: Python 3.8 or newer, the standard
library and the script's torch.
"""
