"""The user's side: pipelines that come with sweeper, to run as they are or to copy into your own `pipelines/`.

A pipeline is a module with `prepare(data) -> Prepared`, called once per machine, and
`build(config, prepared) -> Pipeline`, called per trial. `pipelines.tabular` is the smallest
example. docs/workloads.md tells of the others.
"""
