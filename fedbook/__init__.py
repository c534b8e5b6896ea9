"""Federated learning, one paper at a time. The names of the front door, each imported when it is first asked for."""
__version__ = "1.0.0"

from importlib import import_module

_ROOMS = {
    "engine.federation": ("Client", "Experiment", "Federation", "InProcess", "Mean", "Server", "Step", "run"),
    "engine.workers": ("Checkpoint", "Faults", "Workers", "prove", "trial"),
    "engine.wire": ("Ledger", "Msg", "Refused"),
    "engine.history": ("History",),
    "engine.sizes": ("Profile",),
    "engine.errors": ("UserError",),
    "datasets.folders": ("pictures",),
    "datasets.split": ("dirichlet", "iid"),
    "methods.fedavg": ("FedAvgExperiment", "FedAvgSizes"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME: raise AttributeError(f"module 'fedbook' has no attribute {name!r}")
    return getattr(import_module(f"fedbook.{_HOME[name]}"), name)


def __dir__() -> list[str]: return [*globals(), *__all__]
