PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
DATA ?=

.PHONY: demo test test-extras campaign lint docs bench bench-peers clean

demo: $(VENV)/.installed
	$(BIN)/python examples/spelling.py

test: lint
	$(BIN)/python -m pytest -n 2

# What takes longer or installs more: every benchmark script, the torch layer in trainers of others,
# kernels for GPUs in Triton's interpreter, and the site with its links checked.
test-extras: docs $(VENV)/.trainers
	$(BIN)/python -m pytest -n 2 -m extras

# Damaged files, killed processes, full disks, calls in any order: an hour on two cores.
# ARGUMENTS='--only files --scale 0.1' runs less of it.
campaign: $(VENV)/.installed
	$(BIN)/python -m tests.campaign $(ARGUMENTS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --preview --select PLC2701 src
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The site, in site/; broken links fail. `jupyter execute --inplace` renews the notebooks' outputs.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The claims of the docs, measured. DATA=dir adds the ones that need real data.
bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run_all.py $(if $(DATA),--data $(DATA))

# Beside other classifiers of text, which have an environment of their own.
bench-peers: $(VENV)/.installed $(PEERS)/.installed
	$(if $(DATA),,$(error DATA=dir is missing: the folder with yso-finna-en))
	$(BIN)/python benchmarks/text_peers.py --data $(DATA)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[report,parquet,demo,test]'
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.trainers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[trainers,gpu]'
	touch $@

# torch first: without its pin libpecos brings another build of it, gigabytes larger.
$(PEERS)/.installed: benchmarks/peers.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		$(shell grep '^torch==' constraints.txt)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		-r benchmarks/peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist demo-out bench-out site src/*.egg-info
