"""Progress in a log: every phase has a line, and no minute is without a word."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from extremax.training import progress as module
from extremax.training.progress import Progress
from extremax.training.state import State


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute takes a hundredth of a second."""
    monkeypatch.setattr(module, "_AGAIN_AFTER", 0.01)


def wait_for(text: str, stream: io.StringIO) -> None:
    """Wait until a text appears: no longer than a test may take."""
    end = time.monotonic() + 10.0
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.005)
    assert text in stream.getvalue()


def captured(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error as a log. Not a fixture: pytest sets its own between fixtures and test."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.mark.usefixtures("impatient")
def test_a_long_phase_says_again_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = captured(monkeypatch)
    with Progress(verbose=1) as progress:
        progress.phase("fitting the noise")
        wait_for("fitting the noise (0 min so far)\n", log)
        progress.phase("starting the head")
        n_before = log.getvalue().count("fitting")
        wait_for("starting the head (0 min so far)\n", log)
    assert log.getvalue().count("fitting") == n_before
    assert log.getvalue().startswith("fitting the noise\n")


@pytest.mark.usefixtures("impatient")
def test_a_long_epoch_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = captured(monkeypatch)
    progress = Progress(verbose=1)
    with progress.shown(epochs=2, rows=100, state=State()):
        wait_for("evaluating the start (", log)
        progress.advance(25, loss=1.0)
        wait_for("epoch 1/2, 25% of its rows (", log)
        progress.advance(75, loss=1.0)
        wait_for("evaluating epoch 1/2, 100% of its rows (", log)
        progress.epoch({"epoch": 1, "seconds": 1.0, "surrogate_loss": 1.0})
        wait_for("epoch 2/2 (", log)


def test_threads_end_however_a_phase_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    captured(monkeypatch)
    before = threading.active_count()

    def fail() -> None:
        with Progress(verbose=1) as progress:
            progress.phase("fitting the noise")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert threading.active_count() == before


def test_silent_unless_verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    log = captured(monkeypatch)
    with Progress() as progress:
        progress.phase("fitting the noise")
        progress.note("a line")
        with progress.shown(epochs=1, rows=10, state=State()):
            progress.advance(10, loss=1.0)
    assert log.getvalue() == ""


def test_a_terminal_shows_the_phase_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "_WORTH_A_LINE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(verbose=1) as progress:
        progress.phase("fitting [the] noise")
        wait_for("fitting [the] noise", terminal)
    shown = terminal.getvalue()
    assert shown.endswith("fitting [the] noise: 0 s\n")
    # The cursor is given back.
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0
