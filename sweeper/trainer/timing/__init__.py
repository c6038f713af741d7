"""Times steps: warm-up until steady, undisturbed windows, and the parts of a step on their own.

stretch: steps in a row, with the host and the device synchronised only before and after.
drain: as many steps as use up the batches in a loader's queues; a stretch has whole ones if its time allows.
block: a short stretch of the warm-up, which ends once blocks are equally fast.
window: a stretch whose speed counts, with the conditions during it; several make a timing.
screening: a short first window, after which a trial that is too slow ends.
pass: the training of fixed samples after all windows, for the loss (`sweeper.trainer.quality`).
"""
