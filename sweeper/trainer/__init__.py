"""The optimised trainer and its measurements. Beside it, only `script.{inside, changes}` import torch.

Jobs: each has a function `run`, which `worker.trial` lists
    measure        a trial: warm-up, timed windows, the parts of a step, the quality pass
    quality        the quality pass alone
    prepare        the pipeline's `prepare`, whose arrays are stored
    probe          what this device supports
    trace          a few steps under torch's profiler
    dry_step       two steps of a configuration, and a description of them
    preflight      a few steps that show whether a configuration runs here
    ceilings       how fast the parts of this machine are on their own
    gpu_check      whether a pipeline would run on a GPU
    production     epochs with validation, checkpoints and a history

What they stand on
    pipeline       the interface of pipelines
    sources        data larger than memory, for pipelines
    setup          sets up a job: its device, pipeline and stepper
    device         the device of a trial
    support        what a device does not support
    data           the loaders
    step           a training step, in one process or on several devices
    timing         times stretches of steps and the parts of a step
    on_demand      takes each window when it is requested
    checkpoint     stores what a training run needs to continue
    tensors        stores nested values with tensors
    preload        imports torch's modules once, in the server
"""
