"""Waits for torch to be imported, then loads sweeper's hook. Also runs the sitecustomize that it hides.

Costs a script without torch well below a millisecond: nothing is imported before torch is.
"""

import os
import sys

# The texts of METER_VARIABLE, HOOK_VARIABLE, EXECUTE and sandbox.INSTEAD_OF are repeated below.


def _run_hidden():
    """Runs the user's or the distribution's own sitecustomize, which this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Child processes find this folder through their environment.
    sys.path[:] = [path for path in sys.path if path != here]
    module = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, module)


def _use_mirror(folder, mirror):
    """Makes packages that are installed from a folder (`pip install -e`) load from a mirror of it."""

    def is_in(path, parent):
        return path == parent or path.startswith(parent + os.sep)

    # A virtual environment in the folder is not mirrored.
    stay = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, os.path.dirname(__file__))]
    stay = [path for path in stay if path != folder]

    def mirror_of(path):
        real = os.path.realpath(path)
        if not path or not is_in(real, folder) or any(is_in(real, parent) for parent in stay):
            return path
        return mirror + real[len(folder) :]

    sys.path[:] = map(mirror_of, sys.path)
    # The finders of setuptools, for packages whose folder cannot be on the path.
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            packages, namespaces = (getattr(module, attribute, {}) for attribute in ("MAPPING", "NAMESPACES"))
            packages.update({package: mirror_of(path) for package, path in packages.items()})
            namespaces.update(
                {namespace: list(map(mirror_of, paths)) for namespace, paths in namespaces.items()}
            )


def _open_folders_of_what_is_removed():
    """Makes what is removed lie in the mirror: of all changes, sweeper does not see this one."""

    def add_retry(function):
        def remove(path, *, dir_fd=None):
            try:
                function(path, dir_fd=dir_fd)
            except PermissionError:
                try:
                    # It exists already, but now its folder is in the mirror.
                    os.mkdir(path, dir_fd=dir_fd)
                except OSError:
                    pass
                function(path, dir_fd=dir_fd)

        remove.__name__ = remove.__qualname__ = function.__name__
        remove.__doc__ = function.__doc__
        return remove

    for name in ("remove", "unlink", "rmdir"):
        function = add_retry(getattr(os, name))
        setattr(os, name, function)
        os.supports_dir_fd.add(function)


class _TorchFinder:
    """A finder on `sys.meta_path` that notices the import of torch; the other finders find the module."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not self and find is not None else None
            if spec is not None:
                self._prepare(spec.loader)
                return spec
        return None

    def _prepare(self, loader):
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        # torch.utils.data and torch.optim exist once torch's own module has run.
        def exec_module(module):
            try:
                del loader.exec_module
                sys.meta_path.remove(self)
            except (AttributeError, ValueError):
                pass
            execute(module)
            _load_hook(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass


def _load_hook(torch):
    # With a private name, `sweeper/__init__.py` does not run, and a user's module `sweeper` is not touched.
    package = type(sys)("_sweeper")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["_sweeper"] = package
    try:
        from _sweeper.inside import hook

        hook.install(torch)
    except Exception as error:
        _report(f"{type(error).__name__}: {error}")


def _report(message):
    """Reports to the sweep why nothing is watched; the script runs on."""
    import json
    import socket

    if "SWEEPER_METER" not in os.environ:
        print("sweeper: the script runs unchanged: " + message, file=sys.stderr)
        return
    text = json.dumps({"by": "hook", "pid": os.getpid(), "failed": message[:1000]})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), b"\0" + os.environ["SWEEPER_METER"].encode())
    except OSError:
        pass


if os.environ.get("SWEEPER_INSTEAD_OF"):
    _use_mirror(*os.environ["SWEEPER_INSTEAD_OF"].split("\n"))
    _open_folders_of_what_is_removed()
_mode = os.environ.get("SWEEPER_HOOK")
if _mode == "execute" or (_mode and os.environ.get("SWEEPER_METER")):
    sys.meta_path.insert(0, _TorchFinder())
_run_hidden()
