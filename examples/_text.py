"""Text to learn from: Python's own documentation strings and help topics, or Penn Treebank."""

from __future__ import annotations

import ast
import lzma
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo",
           "ensurepip", "__pycache__", "pydoc_data"}  # fmt: skip
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+")
# What Penn Treebank has in place of rare words.
RARE = "<unk>"
SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")


def documentation_strings() -> list[list[str]]:
    """Sentences of four words and more, each once, numbers as N."""
    seen: dict[tuple[str, ...], None] = {}
    for text in _texts():
        for sentence in SENTENCE.split(text):
            if ">>>" in sentence:  # An example, no sentence.
                continue
            words = tuple("N" if w[0].isdigit() else w for w in WORD.findall(sentence.lower()))
            if len(words) >= 4:
                seen[words] = None
    return [list(words) for words in seen]


def treebank(folder: Path) -> list[list[list[str]]]:
    """ptb.train.txt, ptb.valid.txt and ptb.test.txt, or the same with .xz: a sentence a line."""
    parts = []
    for part in ("train", "valid", "test"):
        path = folder / f"ptb.{part}.txt"
        packed = path.with_name(path.name + ".xz")
        if not path.exists() and not packed.exists():
            raise SystemExit(f"{path} is missing; --data names a folder with ptb.{part}.txt")
        raw = path.read_bytes() if path.exists() else lzma.decompress(packed.read_bytes())
        parts.append([line.split() for line in raw.decode("utf-8").splitlines()])
    return parts


def _texts() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from (topics[name] for name in sorted(topics))
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED & set(path.relative_to(root).parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield text
