"""Installs `pipelines/` and `search_spaces/` as packages of `sweeper`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["sweeper*"]),
        *(f"sweeper.{name}" for name in find_packages(include=["pipelines*"])),
        "sweeper.search_spaces",
    ],
    package_dir={"sweeper.pipelines": "pipelines", "sweeper.search_spaces": "search_spaces"},
)
