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

.PHONY: demo install check test test-full bench bench-quick gpu-check gpu-wheels clean

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

# A process a core, a file of tests at a time in each, and one thread in each: more threads than cores make torch several times slower.
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile

test: check
	$(PYTEST) -m "not full"

test-full: check
	$(PYTEST)

# Beside the peers, in environments of their own; ROWS and BENCH_TOKENIZER name other chats and another tokenizer. A peer that cannot be installed is
# named and left out. Peers of reading apart: their packages contradict those of the trainer, so packer's reader comes into their environment as source,
# and MosaicML's brings torchvision, which fits no CPU build of torch: that environment ends with the CUDA build, 7 GB in all.
ROWS            ?= $(SAMPLE)
BENCH_TOKENIZER ?= $(TINY)
EXTRA = import sys, tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]]))
BENCH = .venv-bench/bin/python -m tests.benchmarks --rows $(ROWS) --tokenizer $(BENCH_TOKENIZER) --read-python .venv-bench-read/bin/python

.venv-bench/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip --disable-pip-version-check --quiet install $(TORCH)
	.venv-bench/bin/pip freeze | grep '^torch==' > .venv-bench/torch.txt
	.venv-bench/bin/pip --disable-pip-version-check --quiet install -e . psutil
	.venv-bench/bin/python -c '$(EXTRA)' bench > .venv-bench/peers.txt
	.venv-bench/bin/python -c '$(EXTRA)' fast >> .venv-bench/peers.txt
	while read -r peer; do .venv-bench/bin/pip --disable-pip-version-check --quiet install -c .venv-bench/torch.txt "$$peer" || echo "$$peer: left out, it cannot be installed here"; done < .venv-bench/peers.txt
	touch $@

.venv-bench-read/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench-read
	.venv-bench-read/bin/pip --disable-pip-version-check --quiet install $(TORCH)
	.venv-bench-read/bin/python -c '$(EXTRA)' bench-read > .venv-bench-read/peers.txt
	while read -r peer; do .venv-bench-read/bin/pip --disable-pip-version-check --quiet install "$$peer" || echo "$$peer: left out, it cannot be installed here"; done < .venv-bench-read/peers.txt
	touch $@

# All of it, half an hour or so: runs/bench/bench.md and bench.json. bench-quick: small inputs, once each, to see that all of it runs.
bench: .venv-bench/.installed .venv-bench-read/.installed
	$(BENCH)

bench-quick: .venv-bench/.installed .venv-bench-read/.installed
	$(BENCH) --quick --out runs/bench-quick

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
	rm -rf $(VENV) .venv-bench .venv-bench-read $(GPU_WHEELS) .tokenizers $(PACKED) $(RUN) build *.egg-info
