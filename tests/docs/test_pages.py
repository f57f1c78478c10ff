"""Every Python block of the docs and the README runs, from top to bottom of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIP = "<!-- not run -->"
# Blocks that need something to be installed, or several processes, have a test of their own.
ELSEWHERE = re.compile(r"<!-- run by (?P<test>\S+) -->$")
_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line numbers and code of the Python blocks that run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        above = text[: match.start()].rstrip()
        if not above.endswith(SKIP) and not ELSEWHERE.search(above):
            found.append((text.count("\n", 0, match.start("code")), match["code"]))
    return found


def reader_data() -> dict[str, object]:
    """What the README leaves to its reader: X, y and X_new."""
    from extremax.data import clustered

    X, y = clustered(2_000, 100, 16)
    return {"X": X[:1_900], "y": y[:1_900], "X_new": X[1_900:]}


def run(page: Path) -> None:
    """Run the blocks of a page in one namespace; tracebacks name the page and its lines."""
    namespace: dict[str, object] = {"__name__": page.stem}
    if page.name == "README.md":
        namespace |= reader_data()
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page)


def test_most_blocks_run() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    skipped = sum(text.count(SKIP) for text in texts)
    assert skipped <= 3, "run blocks instead of skipping them"
    assert len([block for page in PAGES for block in blocks(page)]) > 5 * skipped


def test_blocks_that_run_elsewhere_name_a_test_of_their_page() -> None:
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := ELSEWHERE.search(line):
                test = (ROOT / match["test"]).read_text(encoding="utf-8")
                assert f'"{page.name}"' in test
