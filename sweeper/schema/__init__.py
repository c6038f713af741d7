"""Reads the specification of a sweep from YAML and checks it before anything runs."""

from sweeper.schema.load import load, read_yaml
from sweeper.schema.space import CategoricalParameter, FloatParameter, IntParameter, Parameter
from sweeper.schema.sweep_spec import SweepSpec
from sweeper.schema.writer import to_yaml

__all__ = [
    "CategoricalParameter",
    "FloatParameter",
    "IntParameter",
    "Parameter",
    "SweepSpec",
    "load",
    "read_yaml",
    "to_yaml",
]
