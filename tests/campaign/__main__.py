"""Run the campaign: `python -m tests.campaign --seed 0 --scale 1.0 --only files,folders --jobs 2`.

Trials that fail are printed with their part and seed; `--only PART --seed-of-trial N` repeats one.
The last line is a JSON object of counts. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.campaign.pool import run_trials
from tests.campaign.trial import BAD, PARTS, load_part

#: The names of bad outcomes in the JSON object.
_COUNTED = {
    "traceback": "tracebacks",
    "hang": "hangs",
    "crash": "crashes",
    "silently_wrong": "silently_wrong",
    "lost": "lost",
}
#: Seeds of campaigns are this far apart, so that their trials differ.
_TRIALS_PER_SEED = 10_000_000


def run_campaign(
    parts: Sequence[str], seed: int = 0, scale: float = 1.0, jobs: int = 1, trial: int | None = None
) -> dict[str, Any]:
    """Run parts of the campaign, or one ``trial`` of each, and return the counts."""
    started = time.monotonic()
    trials: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    crash_points: set[tuple[str, str]] = set()
    for name in parts:
        first = seed * _TRIALS_PER_SEED
        seeds = range(first, first + max(1, round(load_part(name).FULL * scale)))
        if trial is not None:
            seeds = range(trial, trial + 1)
        with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as folder:
            for seed_of_trial, result in run_trials(name, seeds, jobs, Path(folder)):
                trials[name] += 1
                counts[result.outcome] += 1
                counts["kills"] += result.kills
                crash_points |= result.crash_points
                if result.outcome in BAD:
                    print(f"{name}, trial {seed_of_trial}: {result.outcome}\n{result.detail}\n")
                _show_progress(name, trials[name], len(seeds), time.monotonic() - started)
    return {
        **{name: trials[name] for name in PARTS if name != "crash"},
        "kills": counts["kills"],
        "crash_points": len(crash_points),
        "accepted": counts["accepted"],
        "refused": counts["refused"],
        **{plural: counts[outcome] for outcome, plural in _COUNTED.items()},
        "seconds": round(time.monotonic() - started, 1),
        "seed": seed,
    }


def failures(counts: dict[str, Any]) -> dict[str, int]:
    """The counts that must be 0 and are not."""
    return {name: counts[name] for name in _COUNTED.values() if counts[name]}


def _show_progress(name: str, done: int, of: int, seconds: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {done:,} of {of:,} ({seconds:.0f} s)", end="", file=sys.stderr)
    if done == of or (done % 1000 == 0 and not sys.stderr.isatty()):
        print(f"\r{name}: {done:,} of {of:,} ({seconds:.0f} s)", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="1.0 takes an hour on two cores")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed-of-trial", type=int, help="repeat one trial of the part in --only")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    counts = run_campaign(
        parts, arguments.seed, arguments.scale, arguments.jobs, arguments.seed_of_trial
    )
    print(json.dumps(counts))
    sys.exit(1 if failures(counts) else 0)


if __name__ == "__main__":
    main()
