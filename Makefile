# The two commands that need nothing but Python 3.11+, git and make:
#   make demo    builds the bundled sample, prints its stats, trains on it
#   make test    lint, types and tests
# The default torch is a CPU build. On a machine with a GPU, name another:   make demo TORCH=torch
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check --quiet

SAMPLE := data/sample/chats.jsonl
TINY   := data/sample/tiny-hybrid
PACKED := data/packed
RUN    := runs/demo

.PHONY: demo install check test test-full bench bench-read gpu-check gpu-wheels clean

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

# Beside the peers, in an environment of its own; ROWS, BENCH_TOKENIZER and LENGTHS name other chats, another tokenizer and modelled lengths.
ROWS            ?= $(SAMPLE)
BENCH_TOKENIZER ?= $(TINY)
LENGTHS         ?= ../shared/data/lengths.py

.venv-bench/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip --disable-pip-version-check --quiet install $(TORCH)
	.venv-bench/bin/pip --disable-pip-version-check --quiet install -e '.[bench,fast]'
	touch $@

bench: .venv-bench/.installed
	.venv-bench/bin/python -m tests.benchmarks.bench_build --rows $(ROWS) --tokenizer $(BENCH_TOKENIZER)
	if [ -f "$(LENGTHS)" ]; then .venv-bench/bin/python -m tests.benchmarks.bench_plan --lengths $(LENGTHS); else echo "no $(LENGTHS): plans are not measured"; fi

# Reading beside the peers: their packages contradict those of the trainer, so packer's reader comes into their environment as source.
.venv-bench-read/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench-read
	.venv-bench-read/bin/pip --disable-pip-version-check --quiet install $(TORCH)
	.venv-bench-read/bin/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench-read"]))' > .venv-bench-read/peers.txt
	.venv-bench-read/bin/pip --disable-pip-version-check --quiet install -r .venv-bench-read/peers.txt
	touch $@

bench-read: .venv-bench-read/.installed
	.venv-bench-read/bin/python -m tests.benchmarks.bench_read

# What only a GPU shows, in less than 8 minutes, with the Python that has its torch: writes tests/gpu/RESULTS.md. Where there is no network, run
# `make gpu-wheels` beforehand and take the folder along: it holds what is pure Python and belongs to no image.
GPU_PYTHON ?= python3
GPU_WHEELS := .gpu-wheels

gpu-wheels:
	$(GPU_PYTHON) -m pip download --no-deps --only-binary=:all: -d $(GPU_WHEELS) flash-linear-attention==0.6.0 fla-core==0.6.0 einops

gpu-check:
	if [ -d $(GPU_WHEELS) ]; then $(GPU_PYTHON) -m pip install --no-index --no-deps -f $(GPU_WHEELS) flash-linear-attention fla-core einops; fi
	$(GPU_PYTHON) -m tests.gpu.check

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-read $(GPU_WHEELS) $(PACKED) $(RUN) build *.egg-info
