"""The user's side: pipelines that come with sweeper, to run as they are or to copy.

A pipeline is a module with `prepare(data) -> Prepared`, called once per machine, and
`build(config, prepared) -> Pipeline`, called per trial. `pipelines.tabular` is the smallest
example. docs/workloads.md tells of the others. A copy belongs into a folder `pipelines/` of your
own: it imports what stands beside it, and there finds the shipped modules that it has no copy of.
"""
