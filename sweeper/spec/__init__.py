"""Reads the specification of a sweep from YAML and checks it before anything runs."""

from sweeper.spec.load import load, read_yaml
from sweeper.spec.space import CategoricalParameter, FloatParameter, IntParameter, Parameter
from sweeper.spec.sweep_spec import SweepSpec
from sweeper.spec.writer import to_yaml

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
