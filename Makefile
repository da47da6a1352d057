# make demo       the whole study on a laptop, from text to figures, in six minutes
# make reference  the reference study at 2.3 M and two other sizes; C4=FOLDER holds its texts (some hours on 2 cores)
# make study      another one: STUDY=FILE; the study files are in olmo_configs/studies/
# make test       ruff, the directions of imports, mypy and the tests; what continuous integration runs
# make test-all   also the tests marked slow
# make test-gpu   the tests that need a GPU, and only those
# make gpu        these, then the study of a GPU, olmo_configs/studies/gpu.yaml; TEXT=FOLDER holds its texts
# make mutants    which wrong programs the fast tests notice (tests/README.md): some hours on one core, resumable
# make golden     write tests/golden/ anew, after an intended change of numbers
#
# Each creates .venv and installs into it first. OPTIONS are pipeline/study.py's: OPTIONS=--dry-run lists the commands,
# OPTIONS='evaluation.max_documents=32' overrides a field. What has finished is not made again:
# after an interruption, the same command resumes.

# A Python that the packages exist for; if there is none, uv, of the package index, brings one into .uv.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$name -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && command -v $$name && break; done)
PY := .venv/bin/python
# Python keeps what it has compiled, whatever the shell says: a start with torch takes 5 s instead of 12 s.
export PYTHONDONTWRITEBYTECODE :=
# Compiled once, at installation: else each of the processes that start together would compile them for itself.
IMPORTED := olmo.model, accelerate
IMPORTED_BESIDE := transformers, statsmodels.api, matplotlib.pyplot, nbclient, duckdb
# One process per core, and each file in one process: each process collects all tests.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help demo reference study test test-all test-gpu gpu lint ruff golden mutants install

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

demo: STUDY = olmo_configs/studies/demo.yaml
reference: STUDY = olmo_configs/studies/reference.yaml

demo reference study: install
	@$(PY) pipeline/study.py $(or $(STUDY),$(error which study? make study STUDY=olmo_configs/studies/c4.yaml)) $(OPTIONS)

test: ruff
	@.venv/bin/mypy & $(PY) -m pytest $(PARALLEL); tests=$$?; wait $$! && exit $$tests

test-all: ruff
	@.venv/bin/mypy & $(PY) -m pytest $(PARALLEL) -m ''; tests=$$?; wait $$! && exit $$tests

test-gpu: install
	$(PY) -m pytest -m gpu

gpu: STUDY = olmo_configs/studies/gpu.yaml
gpu: test-gpu
	$(PY) pipeline/study.py $(STUDY) $(OPTIONS)

lint: ruff
	.venv/bin/mypy

ruff: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache

golden: install
	$(PY) tests/golden/regenerate.py

mutants: install
	$(PY) -m pip install -qq --disable-pip-version-check --no-compile --editable '.[mutants]'
	$(PY) tests/mutants.py $(OPTIONS)

install: .venv/.installed

# ai2-olmo asks for numpy below 2 without need, so it is installed without what it asks for.
.venv/.installed: pyproject.toml
ifeq ($(PYTHON),)
	@echo "no Python 3.11 to 3.14 here: uv brings 3.12 into .uv"
	@python3 -m venv .uv && .uv/bin/pip install -qq --disable-pip-version-check uv
	@UV_PYTHON_INSTALL_DIR=.uv/python .uv/bin/uv venv --quiet --seed --python 3.12 .venv
else
	@$(PYTHON) -m venv .venv
endif
	@echo "installing into .venv with $$($(PY) -V), 2 GB; the first time this takes a minute or two"
	@$(PY) -m pip install -qq --disable-pip-version-check --no-compile --upgrade pip  # new ones resolve faster
	@PYTHONWARNINGS=ignore $(PY) -m pip install -qq --disable-pip-version-check --no-compile --editable '.[analysis,test,train]'
	@$(PY) -m pip install -qq --disable-pip-version-check --no-compile --no-deps ai2-olmo==0.6.0 ai2-olmo-core==0.1.0
	@$(PY) -W ignore -c 'import $(IMPORTED_BESIDE)' & $(PY) -W ignore -c 'import $(IMPORTED)' && wait
	@touch $@
