# NAME: a chapter, path (the ten evenings) or all.  PROFILE: smoke, quick, full, paper.  PIP_ARGS: passed to pip, e.g. to choose another index for torch.
# test-fast leaves out chapters, nodes, kernels, the browser and long proofs. test-browser runs chapters in JupyterLab, moves
# every slider and looks at the whole site; test does so with one chapter. test-all does everything there is.
# TORCH: gpu (the usual PyTorch), cpu (without CUDA, 4 GB less, from CPU_ONLY), auto: cpu on Linux without an NVIDIA driver.
# MINUTES: as many as `make gpu` may take; the next call goes on.
PYTHON   ?= python3
NAME     ?= path
PROFILE  ?= quick
DEVICE   ?= auto
ARGS     ?=
MINUTES  ?= 30
PIP_ARGS ?=
TORCH    ?= gpu
CPU_ONLY ?= https://download.pytorch.org/whl/cpu
BIN      := .venv/bin
WITHOUT_FLOWER = { echo "Flower cannot be installed here: what runs on its nodes is left out"; false; } || $(BIN)/python -m pip install $(PIP_ARGS)
TORCH_FIRST = if test "$(TORCH)" = cpu || { test "$(TORCH)" = auto && test "`uname -s`" = Linux && ! command -v nvidia-smi > /dev/null; }; then \
	echo "PyTorch without CUDA (make TORCH=gpu takes the usual one)"; \
	$(BIN)/python -m pip install $(PIP_ARGS) -q --retries 0 --timeout 20 --index-url $(CPU_ONLY) torch torchvision \
	|| echo "$(CPU_ONLY) is out of reach: the usual PyTorch follows, which is 4 GB larger"; fi
# Three workers on two cores: one of them holds the tests that wait for others (tests/conftest.py says which).
PYTEST    = OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -q -n 3 --dist loadscope --no-loadscope-reorder --durations=10
export FEDBOOK_DEVICE = $(DEVICE)
unexport PYTHONDONTWRITEBYTECODE        # a kernel that compiles the package anew takes seconds

.PHONY: run test test-fast test-browser test-all lab export book site bench gpu

run: .venv/installed
	$(BIN)/fedbook run $(NAME) --profile $(PROFILE) --device $(DEVICE) $(ARGS)

test: .venv/dev
	$(PYTEST)

test-fast: .venv/dev
	$(PYTEST) -m "not slow"

test-all: .venv/dev site
	FEDBOOK_TESTS=all FEDBOOK_BROWSER=all $(PYTEST)

test-browser: .venv/dev site
	FEDBOOK_BROWSER=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_browser.py -q -rP --durations=10

lab: .venv/installed
	$(BIN)/fedbook lab $(NAME)

export: .venv/dev
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean

book: .venv/dev
	$(BIN)/python tools/book.py $(NAME)
	$(BIN)/nbdev_clean

site: .venv/site
	$(BIN)/python site/prepare.py _docs/pages
	$(BIN)/python -m sphinx -q -W --keep-going -j auto -c site -d _docs/doctrees _docs/pages _docs/html
	@$(BIN)/python site/check.py _docs/html
	@echo "The site is in _docs/html; open _docs/html/index.html"

bench: .venv/dev
	$(BIN)/python bench/federation.py
	$(BIN)/python bench/clients.py
	$(BIN)/python bench/wasserstein.py
	$(BIN)/python bench/leverage.py
	$(BIN)/python bench/heads.py
	$(BIN)/python bench/sparse_wire.py
	$(BIN)/python bench/moe.py
	$(BIN)/python bench/secagg.py
	$(BIN)/python bench/stream.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/engines.py

gpu: .venv/installed
	$(BIN)/python bench/gpu.py --minutes $(MINUTES) $(ARGS)

.venv/installed: setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedbook needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	@$(TORCH_FIRST)
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[course,vision,flower,dp]" || $(WITHOUT_FLOWER) -e ".[course,vision,dp]"
	@touch $@

.venv/dev: .venv/installed
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[course,vision,dev,site,flower,dp]" || $(WITHOUT_FLOWER) -e ".[course,vision,dp,dev,site]"
	@touch $@

.venv/site: .venv/installed
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[course,vision,site,flower,dp]" || $(WITHOUT_FLOWER) -e ".[course,vision,dp,site]"
	@touch $@
