# The two commands that need nothing but Python 3.11+, git and make:
#   make demo    builds the bundled sample, prints its stats, trains on it
#   make test    lint, types and tests
# On a machine with a GPU, name the torch to install:   make demo TORCH="torch --index-url https://download.pytorch.org/whl/cu130"
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check --quiet

SAMPLE := data/sample/chats.jsonl
TINY   := data/sample/tiny-hybrid
PACKED := data/packed
RUN    := runs/demo

.PHONY: demo install check test test-full clean

# torch first and by itself: any other package that asks for it would bring the CUDA build, gigabytes of it.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) install -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed pyproject.toml
	$(PIP) install -e '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/packer build $(SAMPLE) --tokenizer $(TINY) --capacity 4096 --eval-fraction 5% -o $(PACKED)
	$(BIN)/packer stats $(PACKED)
	$(BIN)/trainer run --shards $(PACKED) --model $(TINY) --init random --steps 40 --rows-per-step 2 --lr 3e-3 --log-every 5 --out $(RUN)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not full"

test-full: check
	$(BIN)/pytest

clean:
	rm -rf $(VENV) $(PACKED) $(RUN) build *.egg-info
