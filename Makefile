# make demo      the whole study on a laptop, from text to figures, in about a quarter of an hour
# make test      ruff, mypy and the test suite; what continuous integration runs
# make test-all  also the tests marked slow
# make golden    write tests/golden/ anew, after a change that is meant to move numbers
#
# Both create .venv and install into it first. A stage that has finished is not run again; `make demo` after
# an interruption goes on where it was. Another corpus or size is a matter of variables:
#   make study RUN=runs/c4 SOURCE='c4 --max-tokens 2000000000' TOKENIZER=olmo CONFIG=olmo_configs/150m.yaml \
#     STEPS=2000 SHORT_TRAIN=512 SHORT=64 LONG=2048 TARGETS=64 DOCUMENTS=1000

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PY := .venv/bin/python

# The study. Its defaults are the demo's; lengths count tokens.
RUN ?= runs/demo
SOURCE ?= embedded
EVALUATION ?= --evaluation-fraction 0.15
TOKENIZER ?= bpe:1024
CONFIG ?= olmo_configs/tiny.yaml
STEPS ?= 1000
SHORT_TRAIN ?= 32
SHORT ?= 8
LONG ?= 256
TARGETS ?= 16
DOCUMENTS ?= 120
RULES ?= leave_one_out random nearest

MODELS := short-contiguous short-pose long-seed0 long-seed1
CHECKPOINTS = $(addprefix $(RUN)/models/,$(MODELS))
PRETRAIN = pipeline/pretrain.py $(CONFIG) --data $(RUN)/data max_duration=$(STEPS)
SHORT_MODEL = train_context_length=$(SHORT_TRAIN) seed=0
MEASURE = --data $(RUN)/data --results $(RUN)/results --long-context-length $(LONG) --targets-per-chunk $(TARGETS) \
  --max-documents $(DOCUMENTS) --max-chunks-per-document 1
ANALYSE = --results $(RUN)/results --figures $(RUN)/figures

.PHONY: demo study test test-all lint golden install

demo: study

study: install
	$(call stage,pipeline/tokenize_c4.py --out $(RUN)/data --source $(SOURCE) $(EVALUATION) --tokenizer $(TOKENIZER))
	$(call stage,$(PRETRAIN) --save-folder $(RUN)/models/short-contiguous $(SHORT_MODEL))
	$(call stage,$(PRETRAIN) --save-folder $(RUN)/models/short-pose $(SHORT_MODEL) position_scheme=pose pose_target_length=$(LONG))
	$(call stage,$(PRETRAIN) --save-folder $(RUN)/models/long-seed0 train_context_length=$(LONG) seed=0)
	$(call stage,$(PRETRAIN) --save-folder $(RUN)/models/long-seed1 train_context_length=$(LONG) seed=1)
	$(call stage,pipeline/loss_differences.py --checkpoints $(CHECKPOINTS) $(MEASURE) --short-context-length $(SHORT))
	$(call stage,pipeline/length_losses.py --checkpoints $(CHECKPOINTS) $(MEASURE))
	$(call stage,pipeline/influential_tokens.py --checkpoints $(RUN)/models/long-seed0 $(MEASURE) --short-context-length $(SHORT) --rules $(RULES))
	$(PY) analysis/run_notebooks.py $(ANALYSE) --long-models long-seed0 long-seed1 --short-models short-contiguous short-pose \
	  --train-context-lengths short-contiguous=$(SHORT_TRAIN) short-pose=$(SHORT_TRAIN) long-seed0=$(LONG) long-seed1=$(LONG)
	@$(PY) analysis/summary.py $(ANALYSE)

# Runs a stage and writes down that this very command has finished; each stage also knows by itself what is
# complete, but asking twelve of them costs half a minute of imports.
define stage
@mark=$(RUN)/.finished/`echo '$(1)' | cksum | tr ' ' -`; \
if [ -e $$mark ]; then echo "finished before: $(1)"; else \
  echo; echo "python $(1)"; $(PY) $(1) && mkdir -p $(RUN)/.finished && touch $$mark; fi
endef

test: lint
	$(PY) -m pytest

test-all: lint
	$(PY) -m pytest -m ''

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

golden: install
	$(PY) tests/golden/regenerate.py

install: .venv/.installed

.venv/.installed: pyproject.toml
	@echo "installing into .venv; the first time this takes a minute or two"
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check --editable '.[analysis,test]'
	@touch $@
