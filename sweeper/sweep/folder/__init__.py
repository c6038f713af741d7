"""Reads, writes and locks the sweep folder.

Files
    journal              reads and writes the files of a sweep; its table lists who writes the others
    journal_of_schema_1  reads those of sweeper 0.1 and 0.2
    result               defines what result.json holds
    lock                 admits one supervisor per sweep

Which folder
    catalog              finds the sweep that a command works on
    past                 finds an earlier sweep of the same training, and stores what a new one takes from it

Identity
    fingerprint          computes the digests of a fingerprint, and differences between two
    code                 collects the code that is part of it, and that workers are sent

What a sweep found
    load                 loads a sweep to show, compare or export it

Beside the sweeps
    machine_record       stores the speeds that a home's sweeps have measured on a machine
"""
