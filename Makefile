PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=

.PHONY: demo test lint bench clean

demo: $(VENV)/.installed
	$(BIN)/python examples/spelling.py

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The claims of the docs, measured. DATA=dir adds the ones that need real data.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run_all.py $(if $(DATA),--data $(DATA))

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[report,parquet,demo,test]'
	touch $@

clean:
	rm -rf $(VENV) build dist demo-out bench-out src/*.egg-info
