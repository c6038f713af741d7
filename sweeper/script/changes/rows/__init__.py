"""Reads, checks and keeps a loader's rows, for the changes of where batches come from.

    collating      collates a whole data set once, if batches gathered from it are the same
    gathered       gathers batches from it, in the order of torch's own iterators
    on_device      keeps the collated rows on the GPU
    own_rows       reads rows in the training process instead of workers
    witness        keeps the data set as persistent workers have it, in a process of its own
    dataset_file   stores what was collated or decoded, for other ranks and later processes
    children       reads rows in child processes, which leave the script's process as it is
    trees          takes batches apart into tensors, and compares them bit for bit
    generators     reads the states of the random generators that a row could draw from

Of the folder above, they import `change` alone.
"""
