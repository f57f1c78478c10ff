"""Clipping of sparse gradients is that of the same gradients as dense tensors."""

from __future__ import annotations

import pytest
import torch

from extremax.nn import clip_grad_norm_, clip_grad_value_


@pytest.fixture
def gradients():
    """Two parameters with sparse gradients, one of them with a row that occurs twice, a dense one
    and one without; and twins with dense gradients."""
    generator = torch.Generator()

    def parameters(sparse):
        generator.manual_seed(0)
        found = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((7, 3), (7,), (4,), (2,))]
        values = [
            torch.randn(shape, generator=generator.manual_seed(1)) for shape in ((4, 3), (4,))
        ]
        for parameter, value in zip(found, values, strict=False):
            rows = torch.tensor([[5, 1, 5, 2]])
            gradient = torch.sparse_coo_tensor(rows, value, parameter.shape, check_invariants=True)
            parameter.grad = gradient if sparse else gradient.to_dense()
        found[2].grad = torch.randn(4, generator=generator)
        return found

    return parameters(True), parameters(False)


def assert_equal(ours, theirs):
    assert ours[0].grad.is_sparse
    assert ours[3].grad is None
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(mine.grad.to_dense(), other.grad)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norms(gradients, max_norm, norm_type):
    ours, theirs = gradients
    found = clip_grad_norm_(iter(ours), max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(found, expected)
    assert_equal(ours, theirs)
    again = clip_grad_norm_(ours, max_norm, norm_type)
    assert float(again) <= max_norm + 1e-4


def test_values(gradients):
    ours, theirs = gradients
    clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    assert_equal(ours, theirs)
    assert float(ours[0].grad.to_dense().abs().max()) == pytest.approx(0.3)


def test_one_parameter_and_gradients_that_are_not_finite(gradients):
    (mine, *_), (other, *_) = gradients
    clip_grad_norm_(mine, 0.5)
    torch.nn.utils.clip_grad_norm_(other, 0.5)
    torch.testing.assert_close(mine.grad.to_dense(), other.grad)
    mine.grad = mine.grad * float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(mine, 0.5, error_if_nonfinite=True)
