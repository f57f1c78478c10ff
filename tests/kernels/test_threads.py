"""parallel() visits every item once, whatever the threads, the callers and the load."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import ArgumentError
from extremax.kernels.cpu.random import fill_uniform
from extremax.kernels.cpu.threads import (
    active,
    available,
    each,
    limit,
    one_torch_thread,
    parallel,
    resolve,
)
from extremax.random import Stream

pytestmark = pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")
forks = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork safely")


def visit(start: int, stop: int, visits: np.ndarray) -> None:
    visits[start:stop] += 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 200), st.integers(0, 250), st.integers(1, 5))
def test_every_item_is_visited_once(n: int, chunk: int, n_threads: int) -> None:
    visits = np.zeros(n, np.int64)
    with limit(n_threads):
        parallel(visit, n, chunk, visits)
    assert (visits == 1).all()


def test_chunks_have_the_size_asked_for_and_run_on_several_threads() -> None:
    barrier = threading.Barrier(2, timeout=60)
    chunks: list[tuple[int, int]] = []
    workers = set()

    def meet(start: int, stop: int) -> None:
        barrier.wait()  # Passes only when two chunks run at the same time.
        workers.add(threading.get_ident())
        chunks.append((start, stop))

    with limit(2):
        parallel(meet, 10, 5)
    assert sorted(chunks) == [(0, 5), (5, 10)]
    assert len(workers) == 2
    assert threading.get_ident() in workers


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("bad_chunk", [0, 3, 9])
def test_an_error_in_any_chunk_reaches_the_caller(n_threads: int, bad_chunk: int) -> None:
    def fail(start: int, stop: int) -> None:
        if start <= bad_chunk < stop:
            raise ArithmeticError(f"chunk {bad_chunk}")

    with limit(n_threads), pytest.raises(ArithmeticError, match=f"chunk {bad_chunk}"):
        parallel(fail, 10, 1)
    visits = np.zeros(10, np.int64)
    with limit(n_threads):
        parallel(visit, 10, 1, visits)
    assert (visits == 1).all()


def test_no_thread_is_still_at_work_after_an_error() -> None:
    slow, failed = threading.Event(), threading.Event()
    finished = []

    def kernel(start: int, stop: int) -> None:
        if start == 0:
            assert slow.wait(60)
            failed.set()
            raise ArithmeticError
        slow.set()
        assert failed.wait(60)
        finished.append(start)

    with limit(3), pytest.raises(ArithmeticError):
        parallel(kernel, 3, 1)
    assert sorted(finished) == [1, 2]


def test_an_error_inside_a_helper_thread_is_not_lost() -> None:
    caller = threading.get_ident()
    helper_failed = threading.Event()

    def fail_elsewhere(start: int, stop: int) -> None:
        if threading.get_ident() != caller:
            helper_failed.set()
            raise ArithmeticError("helper")
        assert helper_failed.wait(60)

    with limit(2), pytest.raises(ArithmeticError, match="helper"):
        parallel(fail_elsewhere, 2, 1)


def test_a_region_does_not_wait_for_helpers_that_have_not_begun() -> None:
    """Both helpers of three threads are kept busy by another region."""
    go, inside = threading.Event(), threading.Semaphore(0)

    def hold(start: int, stop: int) -> None:
        inside.release()
        assert go.wait(60)

    def hold_all() -> None:
        with limit(3):
            parallel(hold, 3, 1)

    holder = threading.Thread(target=hold_all)
    holder.start()
    for _ in range(3):
        assert inside.acquire(timeout=60)
    visits = np.zeros(100, np.int64)
    with limit(3):
        parallel(visit, 100, 1, visits)
    assert (visits == 1).all()
    go.set()
    holder.join()


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_each_works_alone_on_its_item(n: int, n_threads: int) -> None:
    seen: list[tuple[int, int, int]] = []

    def work(i: int) -> None:
        inner = np.zeros(50, np.int64)
        parallel(visit, 50, 1, inner)
        assert (inner == 1).all()
        seen.append((i, active(), torch.get_num_threads()))

    with limit(n_threads):
        each(work, n)
        assert active() == torch.get_num_threads() == n_threads
    # A single item has the threads of the kernels.
    alone = n_threads if n == 1 else 1
    assert sorted(seen) == [(i, alone, 1) for i in range(n)]


def test_several_python_threads_may_call_at_once() -> None:
    results: dict[int, np.ndarray] = {}

    def call(seed: int) -> None:
        with limit(3):
            for _ in range(20):
                results[seed] = Stream.of(seed, rows=np.arange(60_000)).uniform(1)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    with limit(1):
        for seed in range(6):
            alone = Stream.of(seed, rows=np.arange(60_000)).uniform(1)
            assert np.array_equal(results[seed], alone)


@contextmanager
def busy_cores() -> Iterator[None]:
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available())
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_results_are_right_while_others_burn_the_cores() -> None:
    key, rows = np.uint64(5), np.arange(200_000)
    alone, crowded = np.empty((2, len(rows), 3))
    fill_uniform(0, len(rows), key, rows, alone)
    with busy_cores(), limit(4):
        parallel(fill_uniform, len(rows), 1000, key, rows, crowded)
    assert np.array_equal(alone, crowded)


def in_forked_child(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked process; queue.Empty if it hangs there."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(function()), daemon=True)
    child.start()
    try:
        return queue.get(timeout=60)
    finally:
        child.kill()
        child.join()


def total() -> float:
    with limit(2):
        return float(Stream.of(0, rows=np.arange(40_000)).uniform(1).sum())


@forks
def test_a_forked_child_makes_its_own_threads() -> None:
    assert in_forked_child(total) == total()


@forks
def test_torch_works_alone_in_a_forked_child() -> None:
    def threads() -> tuple[int, int, int]:
        with limit(2):
            inside = torch.get_num_threads()
            with one_torch_thread():
                return torch.get_num_threads(), inside, active()

    with limit(2):
        # Large enough that torch starts its threads, which a fork does not copy.
        torch.rand(1 << 20).exp().sum()
    assert threads() == (1, 2, 2)
    assert in_forked_child(threads) == (1, 1, 2)


@forks
@pytest.mark.parametrize("noise", ["tree", "frequency"])
def test_a_model_predicts_the_same_in_a_forked_child(noise: str) -> None:
    features, labels = clustered(3000, 300, 32, seed=0)
    model = ExtremeClassifier(noise=noise, n_jobs=2, epochs=1, random_state=0).fit(features, labels)

    def predict() -> tuple[np.ndarray, np.ndarray]:
        return model.predict_proba(features), model.predict_topk(features, 3).labels

    # Threads of torch and of the kernels are at work before the fork.
    expected = predict()
    for one, other in zip(in_forked_child(predict), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_limit_ends_with_its_block_even_after_an_error() -> None:
    def fail() -> None:
        with limit(before + 1):
            assert torch.get_num_threads() == before + 1
            raise KeyError

    before = torch.get_num_threads()
    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == before


def test_n_jobs_is_read_as_in_scikit_learn() -> None:
    assert resolve(None) == resolve(-1) == available()
    assert resolve(3) == 3
    assert resolve(-2) == max(1, available() - 1)
    assert resolve(-1000) == 1
    assert resolve(np.int64(3)) == 3


@pytest.mark.parametrize("n_jobs", [0, 1.5, 2.0, "2", True])
def test_n_jobs_that_is_no_number_of_threads_is_refused(n_jobs: Any) -> None:
    with pytest.raises(ArgumentError, match="n_jobs must be an integer other than 0"):
        resolve(n_jobs)


def test_far_too_many_jobs_are_cut_to_what_the_machine_can_run() -> None:
    assert available() <= resolve(10**6) <= 4 * available()
    visits = np.zeros(10_000, np.int64)
    with limit(10**6):
        parallel(visit, len(visits), 1, visits)
        assert torch.get_num_threads() == resolve(10**6)
    assert (visits == 1).all()
