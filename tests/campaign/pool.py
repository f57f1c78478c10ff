"""Worker processes for trials, which may crash or hang without ending the campaign.

The parent knows which trial a worker has. A worker that dies is a "crash" of that trial; one that
takes longer than the part's TIMEOUT is a "hang" and is killed, with its children. A new worker
takes its place.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.campaign.trial import Part, Result, load_part

#: Seconds a worker may take to start and to prepare.
_PREPARATION = 600.0
_LOG_TAIL = 3000

Trials = Iterator[tuple[int, Result]]


def run_trials(name: str, seeds: Sequence[int], jobs: int, folder: Path) -> Trials:
    """Run one trial of a part per seed, in ``jobs`` processes; yield (seed, result) as they end."""
    timeout = load_part(name).TIMEOUT
    waiting = deque(seeds)
    n_workers = min(jobs, len(waiting))
    numbers = iter(range(10**9))
    workers = [_Worker(name, folder / f"worker{next(numbers)}") for _ in range(n_workers)]
    try:
        while workers:
            moment = time.monotonic()
            until = min(worker.deadline for worker in workers)
            ready = wait([worker.connection for worker in workers], max(0.0, until - moment))
            for worker in list(workers):
                if worker.connection in ready:
                    result = worker.receive()
                elif time.monotonic() >= worker.deadline:
                    result = worker.hung()
                else:
                    continue
                if result is not None:
                    assert worker.seed is not None
                    yield worker.seed, result
                if not worker.alive:
                    workers.remove(worker)
                    if not waiting:
                        continue
                    worker = _Worker(name, folder / f"worker{next(numbers)}")
                    workers.append(worker)
                elif waiting:
                    worker.send(waiting.popleft(), timeout)
                else:
                    worker.stop()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.log = folder, folder.with_suffix(".log")
        self.seed: int | None = None
        self.alive = True
        self.deadline = time.monotonic() + _PREPARATION
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(name, folder, self.log, theirs))
        self.process.start()
        theirs.close()

    def send(self, seed: int, timeout: float) -> None:
        self.seed = seed
        self.deadline = time.monotonic() + timeout
        with suppress(BrokenPipeError):  # Dead already: `receive` will find that out.
            self.connection.send(seed)

    def receive(self) -> Result | None:
        """Return the result of the trial, or None where the worker has only become ready."""
        try:
            result = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            status = self.process.exitcode
            self.stop()
            result = Result("crash", f"exit status {status}\n{self._log_tail()}")
        if self.seed is None and result is not None:
            raise RuntimeError(f"preparing {self.folder.name} failed: {result.detail}")
        return result

    def hung(self) -> Result:
        """Kill the worker; the detail says where each thread was."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.stop()
        return Result("hang", self._log_tail())

    def stop(self) -> None:
        """End the process and its children, and remove its files."""
        self.alive = False
        assert self.process.pid is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_TAIL:] if self.log.exists() else ""


def _serve(name: str, folder: Path, log: Path, connection: Connection) -> None:
    """The worker: run the trials whose seeds arrive, until the pipe closes."""
    os.setsid()  # So that a trial's own processes end with the worker.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        part: Part = load_part(name)
        part.prepare(folder)
    except BaseException:
        connection.send(Result("traceback", traceback.format_exc()))
        return
    connection.send(None)
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        os.ftruncate(output, 0)
        try:
            result = part.run(seed, folder)
        except BaseException:
            result = Result("traceback", traceback.format_exc())
        connection.send(result)
