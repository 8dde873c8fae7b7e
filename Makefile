# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= build
# small matrices: idle BLAS threads that spin cost more than they bring
export OPENBLAS_NUM_THREADS ?= 1
# what pip leaves uncompiled is compiled once and kept, not by every process anew, which takes it 5 CPU seconds
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-mnist test suite test-slow test-torch check docs setup clean

demo: setup
	$(BIN)/dagtrain run examples/digits/digits.onnx --data digits --recipe examples/digits/recipe.toml \
	    --devices examples/digits/cluster.toml --out $(OUT)/digits

# a small ResNet on 5 000 images of MNIST through all steps, then back to ONNX; two batches in simulation, no engine alone
demo-mnist: setup
	$(BIN)/dagtrain run examples/mnist/mnist.onnx --data examples/mnist/data.toml --recipe examples/mnist/recipe.toml \
	    --devices examples/mnist/cluster.toml --batches 2 --epochs 6 --no-efficiency --out $(OUT)/mnist
	$(BIN)/dagtrain export --out $(OUT)/mnist
	$(BIN)/dagtrain evaluate $(OUT)/mnist/export/mnist.onnx --out $(OUT)/mnist

# the checks, which are at work on one core, beside the tests
test: setup
	@./setup-tools.sh tests
	@$(MAKE) --no-print-directory -j 2 check suite

suite: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

# minutes rather than seconds: one epoch in Verilator, ImageNet-sized models, place and route
test-slow: setup
	$(BIN)/python -m pip install -q -e ".[ecp5,mpich]"
	$(BIN)/python -m pytest -q -m slow

# PyTorch as an independent reference; its wheel is large, so it stays optional
test-torch: setup
	$(BIN)/python -m pip install -q -e ".[torch]"
	$(BIN)/python -m pytest -q -m torch

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports

# docs/ as a site with search, commands and API made of the code: $(OUT)/site/index.html
docs: setup
	$(BIN)/sphinx-build -q -W --keep-going docs $(OUT)/site

setup: $(VENV)/.complete
	@./setup-tools.sh

$(VENV)/.complete: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("dagtrain needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	# what is imported is compiled then: most of it never is
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf $(OUT)
