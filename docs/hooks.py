"""MkDocs hooks: pages that are made from files outside docs/ and from notebooks.

CONTRIBUTING.md and CHANGELOG.md stay in the root of the repository, where people look for them,
and become pages of the site. A notebook becomes a page with the outputs stored in it; nothing is
executed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the pictures of notebooks."""
    root = Path(config.docs_dir).parent
    for source, page in ROOT_PAGES.items():
        text = (root / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        notebook = json.loads(file.content_string)
        text, pictures = notebook_page(notebook, Path(file.src_uri).stem)
        uri = file.src_uri.removesuffix(".ipynb")
        files.append(File.generated(config, f"{uri}.md", content=text))
        for name, content in pictures.items():
            picture = str(Path(uri).parent / name)
            files.append(File.generated(config, picture, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at root files to their pages."""
    for source, page in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
    return markdown


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(text for output in cell["outputs"] for text in output.get("text", ()))
        if printed:
            parts.append(f'```{{.text .output title="Output"}}\n{printed.rstrip()}\n```')
        for output in cell["outputs"]:
            if "image/png" in output.get("data", ()):
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
    parts.append(f"[Download this notebook]({stem}.ipynb){{ .md-button }}")
    return "\n\n".join(parts) + "\n", pictures
