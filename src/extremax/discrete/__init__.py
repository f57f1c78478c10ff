"""Discrete variables: sampling from a softmax, relaxing it, and differentiating through it.

Samples are argmaxes of Gumbel-perturbed logits (`gumbel`), relaxed samples are softmaxes of them
(`relaxations`). Continuous distributions are reparameterized (`reparameterize`) and truncated
(`truncate`). All estimators of ∇E f(b) have the same signature (`estimators`); `measure`
reports the bias and variance of an estimator. Random numbers come from the torch generator passed
to each function.
"""

from extremax.discrete.estimators.base import Estimator, Exact
from extremax.discrete.estimators.controlled import Rebar, Relax
from extremax.discrete.estimators.reinforce import (
    ControlVariate,
    LeaveOneOutReinforce,
    Reinforce,
    RunningMeanReinforce,
    optimal_coefficient,
)
from extremax.discrete.estimators.relaxed import GumbelSoftmax, StraightThrough
from extremax.discrete.gumbel import (
    gumbel,
    gumbel_max,
    gumbel_posterior,
    gumbel_posterior_noise,
    gumbel_top_k,
    truncated_gumbel,
)
from extremax.discrete.kl import kl_gaussians, kl_to_standard_normal
from extremax.discrete.logistic import logistic, logistic_posterior, logistic_posterior_noise
from extremax.discrete.measure import Measurement, gradients, measure, variance_ratio
from extremax.discrete.relaxations import (
    binary_concrete,
    binary_concrete_log_prob,
    concrete,
    concrete_log_prob,
    log_concrete_log_prob,
    logit_binary_concrete_log_prob,
    softmax_map,
    straight_through,
)
from extremax.discrete.reparameterize import (
    REPARAMETERIZATIONS,
    Reparameterization,
    log_prob,
    sample,
)
from extremax.discrete.truncate import sample_truncated, truncated_log_prob
from extremax.discrete.variables import Bernoulli, Categorical, Variable

#: Estimators by name; `create` makes one that fits a variable.
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
    "REPARAMETERIZATIONS",
    "Bernoulli",
    "Categorical",
    "ControlVariate",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "LeaveOneOutReinforce",
    "Measurement",
    "Rebar",
    "Reinforce",
    "Relax",
    "Reparameterization",
    "RunningMeanReinforce",
    "StraightThrough",
    "Variable",
    "binary_concrete",
    "binary_concrete_log_prob",
    "concrete",
    "concrete_log_prob",
    "create",
    "gradients",
    "gumbel",
    "gumbel_max",
    "gumbel_posterior",
    "gumbel_posterior_noise",
    "gumbel_top_k",
    "kl_gaussians",
    "kl_to_standard_normal",
    "log_concrete_log_prob",
    "log_prob",
    "logistic",
    "logistic_posterior",
    "logistic_posterior_noise",
    "logit_binary_concrete_log_prob",
    "measure",
    "optimal_coefficient",
    "sample",
    "sample_truncated",
    "softmax_map",
    "straight_through",
    "truncated_gumbel",
    "truncated_log_prob",
    "variance_ratio",
]
