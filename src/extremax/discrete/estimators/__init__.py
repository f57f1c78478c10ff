"""Estimators of ∇E f(b) for discrete b, from exact enumeration to learned control variates.

``ESTIMATORS`` lists them by name; `create` makes one that fits a variable.
"""

from extremax.discrete.estimators.base import Estimator
from extremax.discrete.estimators.control_variate import ControlVariate, optimal_coefficient
from extremax.discrete.estimators.exact import Exact
from extremax.discrete.estimators.rebar import Rebar
from extremax.discrete.estimators.reinforce import (
    LeaveOneOutReinforce,
    Reinforce,
    RunningMeanReinforce,
)
from extremax.discrete.estimators.relax import Relax
from extremax.discrete.estimators.relaxed import GumbelSoftmax, StraightThrough
from extremax.discrete.variables import Variable

ESTIMATORS: dict[str, type[Estimator]] = {
    "exact": Exact,
    "reinforce": Reinforce,
    "reinforce_running_mean": RunningMeanReinforce,
    "reinforce_leave_one_out": LeaveOneOutReinforce,
    "control_variate": ControlVariate,
    "gumbel_softmax": GumbelSoftmax,
    "straight_through": StraightThrough,
    "rebar": Rebar,
    "relax": Relax,
}


def create(name: str, variable: Variable) -> Estimator:
    """Create an estimator by name, with default settings, for a variable of this shape."""
    if name not in ESTIMATORS:
        raise ValueError(f"name must be one of {', '.join(ESTIMATORS)}, got {name!r}")
    return Relax(variable.event_size) if name == "relax" else ESTIMATORS[name]()


__all__ = [
    "ESTIMATORS",
    "ControlVariate",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "LeaveOneOutReinforce",
    "Rebar",
    "Reinforce",
    "Relax",
    "RunningMeanReinforce",
    "StraightThrough",
    "create",
    "optimal_coefficient",
]
