"""Compare cells (an objective with a noise) at equal training time, as ``extremax compare`` does.

    problem = Problem.split(features, labels)
    cells, left_out = choose("negative_sampling×tree, sampled_softmax×mixture@64, exact", 5)
    result = compare(problem, cells, Options(budget=60))

Test rows are held out first. The learning rate and the penalties of each cell are tuned on
validation rows by successive halving. The best setting then trains for the whole budget and is
evaluated exactly on the test rows.
"""

from extremax.comparison.cells import Cell, LeftOut, choose
from extremax.comparison.problem import Problem
from extremax.comparison.runner import Comparison, compare
from extremax.comparison.tuning import Options
from extremax.comparison.watch import Watch

__all__ = ["Cell", "Comparison", "LeftOut", "Options", "Problem", "Watch", "choose", "compare"]
