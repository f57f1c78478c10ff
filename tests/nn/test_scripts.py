"""A layer in usual training scripts; the longer scripts are those of docs/nn.md."""

from __future__ import annotations

import copy
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from extremax.nn import ExtremeSoftmax, RowAdagrad, RowAdam

PAGE = Path(__file__).parents[2] / "docs" / "nn.md"
K, C = 6, 40
USUAL = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop]


class Model(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(5, K), nn.Tanh())
        self.output = ExtremeSoftmax(K, C, **{"n_negatives": 10} | settings)

    def forward(self, x, target):
        return self.output(self.network(x), target)


def problem(n: int, device: str, seed: int):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(C, (n,), generator=generator)
    centers = 2 * torch.randn((C, 5), generator=torch.Generator().manual_seed(7))
    x = centers[target] + 0.3 * torch.randn((n, 5), generator=generator)
    return x.to(device), target.to(device)


def model_on(device: str, **settings) -> Model:
    torch.manual_seed(0)
    return Model(**settings).to(device)


@torch.no_grad()
def loss_of(model: Model, device: str) -> float:
    loss = float(model.eval()(*problem(400, device, seed=99)))
    model.train()
    return loss


@pytest.mark.parametrize("optimizer", USUAL)
def test_usual_optimizers_clipping_and_schedulers_work_unchanged(optimizer, device):
    model = model_on(device)
    before = loss_of(model, device)
    rate = 1.0 if optimizer is torch.optim.SGD else 0.02
    steps = optimizer(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(steps, T_max=100)
    for seed in range(100):
        steps.zero_grad()
        model(*problem(64, device, seed)).backward()
        assert not model.output.weight.grad.is_sparse
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norms = [parameter.grad.norm() for parameter in model.parameters()]
        assert float(torch.stack(norms).norm()) <= 1.001
        steps.step()
        schedule.step()
    assert loss_of(model, device) < before - 0.5


def test_a_parameter_has_the_gradient_that_its_optimizer_takes(device):
    model = model_on(device)
    RowAdam([model.output.weight], lr=0.01)
    others = [p for p in model.parameters() if p is not model.output.weight]
    optimizer = torch.optim.AdamW(others)
    model(*problem(9, device, 0)).backward()
    assert model.output.weight.grad.is_sparse
    assert not model.output.bias.grad.is_sparse
    optimizer.step()
    for sparse in (True, False):
        explicit = model_on(device, sparse=sparse)
        RowAdam(explicit.parameters())
        explicit(*problem(9, device, 0)).backward()
        assert explicit.output.weight.grad.is_sparse is sparse


def test_processes_that_train_together_have_dense_gradients_and_equal_biases(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for n_processes, alone in ((2, False), (1, True)):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda n=n_processes: n)
        model = model_on("cpu")
        before = model.output.bias.detach().clone()
        RowAdam(model.parameters())
        target = torch.tensor([3, 3, 3, 5])
        model(torch.randn(4, 5), target).backward()
        assert model.output.weight.grad.is_sparse is alone
        assert torch.equal(model.output.bias, before) is not alone
        assert int(model.output.proposals.noise.counts_[3]) == 3


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, RowAdagrad])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_with_a_scaler(dtype, optimizer, device):
    model = model_on(device)
    before = loss_of(model, device)
    # The network in half precision, the layer in float32; two steps are skipped on purpose.
    steps = optimizer(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    for seed in range(40):
        steps.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = model(*problem(64, device, seed))
        assert loss.dtype == torch.float32
        scaler.scale(loss * (float("inf") if seed in (3, 4) else 1.0)).backward()
        old = model.output.bias.detach().clone()
        scaler.step(steps)
        scaler.update()
        if seed in (3, 4):
            assert torch.equal(model.output.bias, old)
    assert scaler.get_scale() == 2.0**6
    assert loss_of(model, device) < before - 0.5


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, RowAdam])
def test_gradients_of_several_batches_add_up(optimizer, device):
    model = model_on(device, labels=torch.arange(C))
    twin = copy.deepcopy(model)
    steps = optimizer(model.parameters(), lr=0.1)
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for seed in range(3):
        (model(*problem(12, device, seed)) / 3).backward()
        found = torch.autograd.grad(twin(*problem(12, device, seed)) / 3, list(twin.parameters()))
        total = [sum_ + each for sum_, each in zip(total, found, strict=True)]
    for parameter, expected in zip(model.parameters(), total, strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), expected)
    before = model.output.bias.detach().clone()
    steps.step()
    assert not torch.equal(model.output.bias, before)


def script(word: str) -> str:
    """The block of the page that contains a word, after the blocks that it builds on.

    A comment above marks the blocks that run here.
    """
    text = PAGE.read_text(encoding="utf-8")
    pattern = r"^(<!-- run by [^\n]* -->\n)?```python\n(.*?)^```$"
    blocks = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    data, model = (
        next(code for _, code in blocks if sign in code) for sign in ("labels =", "class Model")
    )
    (found,) = [code for mark, code in blocks if mark and word in code]
    return "\n".join([data.split("\nnetwork =")[0], model, found])


def run(code: str) -> dict[str, Any]:
    """The names that a script leaves."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(code, names)
    return names


@torch.no_grad()
def assert_trained(model: nn.Module, names: dict[str, Any]) -> None:
    """The exact loss of a model is less than that of a new one."""
    losses = [
        float(each.eval()(names["features"][-1000:], names["labels"][-1000:]))
        for each in (model, names["Model"](names["labels"]))
    ]
    assert losses[0] < losses[1] - 0.1


def test_the_script_with_compile(monkeypatch):
    # The default backend has a test of its own, which takes longer.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    names = run(script("torch.compile"))
    assert_trained(names["model"], names)


def test_the_script_with_several_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = script("DistributedDataParallel")
    end = "torch.distributed.destroy_process_group()"
    assert end in code
    check = """
weight = model.module.output.weight.detach()
weights = [torch.zeros_like(weight) for _ in range(2)]
torch.distributed.all_gather(weights, weight)
print("equal:", torch.equal(*weights))
with torch.no_grad():
    for each in (model.module, Model(labels)):
        print("loss:", float(each.eval()(features[-1000:], labels[-1000:])))
"""
    path = tmp_path / "train.py"
    path.write_text(code.replace(end, check + end), encoding="utf-8")
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=os.environ | both | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "equal: True" in out
        after, before = (float(line.split()[1]) for line in out.splitlines() if "loss:" in line)
        assert after < before - 0.1


@pytest.mark.extras
def test_the_script_with_lightning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(script("import lightning"))
    assert_trained(names["module"].model, names)


@pytest.mark.extras
def test_the_script_with_accelerate():
    names = run(script("import Accelerator"))
    assert_trained(names["model"], names)
