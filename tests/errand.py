"""The distribution `errand-launcher`: each job is a process, started as `python -m sweeper.worker`."""

from __future__ import annotations

from pathlib import Path

from distributions import install

LAUNCHER = """\
import subprocess, sys, threading
from concurrent.futures import Future
from sweeper.core.launchers import LauncherTraits
from sweeper.execution.launcher import Launcher, outcome_or_lost
from sweeper.execution.local import environment_of

TRAITS = LauncherTraits(factory="errand_launcher:ErrandLauncher")

class Errand(Future):
    def start(self, folder, env):
        self.process = subprocess.Popen([sys.executable, "-m", "sweeper.worker", str(folder)], env=env)
        threading.Thread(target=self.wait, args=[folder], daemon=True).start()
        return self

    def wait(self, folder):
        self.process.wait()
        self.set_result(outcome_or_lost(folder))

    def cancel(self):
        self.process.terminate()
        return not self.done()

class ErrandLauncher(Launcher):
    capacity = 2

    def __init__(self, request):
        self.env = environment_of(request.folder, request.execution.pass_env)
        self.errands = []

    def submit(self, folder):
        self.errands += [errand := Errand().start(folder, self.env)]
        return errand

    def close(self):
        for errand in self.errands:
            errand.cancel()
            errand.process.wait()
"""


def install_errand(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"sweeper.launchers": {"errand": "errand_launcher:TRAITS"}}
    return install(folder, "errand-launcher", points, {"errand_launcher.py": LAUNCHER})
