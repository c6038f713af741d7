"""Puts the pipelines and search spaces that stand beside `sweeper/` inside of it, as `sweeper.pipelines`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["sweeper*"]),
        *(f"sweeper.{name}" for name in find_packages(include=["pipelines*"])),
        "sweeper.search_spaces",
    ],
    package_dir={"sweeper.pipelines": "pipelines", "sweeper.search_spaces": "search_spaces"},
)
