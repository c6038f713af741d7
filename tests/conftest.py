"""Fixtures for every test: the services that some tests need, made when they are first asked for."""

pytest_plugins = ["leftovers", "services.slurm", "services.postgres", "services.mlflow_server"]
