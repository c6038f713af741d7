"""Places jobs: `submit(folder)` returns a `Handle`. `launcher` has the protocol.

On this machine
    local                runs each job in processes
    server               is the process of `local` that imports torch and forks a keeper for each job
    inline               runs jobs in the supervisor's process, for debugging

On a cluster, in the supervisor's process
    cluster              sends jobs to the workers of a pool; keeps compared trials on one worker
    workers              describes these workers and their jobs
    pool                 defines the protocol of pools, which start and name workers

    dask, ray, batch     are the pools: workers of Dask, of Ray, and jobs of a batch system
    jobqueue             wraps dask-jobqueue, which submits these jobs
    job_options          translates `execution.job` into their options

On a cluster, in a worker's process
    node                 runs the jobs that arrive, with `local`
    parcel               packs a job with its code, and its results, as bytes; the supervisor uses it, too
"""
