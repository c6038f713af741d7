"""Pipelines that ship with sweeper, to run as they are or to copy.

A pipeline is a module with `prepare(data) -> Prepared`, called once per machine, and
`build(config, prepared) -> Pipeline`, called per trial. `pipelines.tabular` is the smallest
example; docs/workloads.md describes the others. Put a copy into a folder `pipelines/` of your own:
its relative imports find your modules there first, and otherwise the shipped ones.
"""
