# Two commands do all the set-up: `make quickstart` and `make test`. The rest are for contributors.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test check docs format bench clean

quickstart: .venv/ready
	$(BIN)/nasgrow search studies/quickstart.yaml

# One more than cores: many tests wait for processes that they start.
PROCESSES = $(shell $(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')

test: .venv/ready
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_style.py

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready
	for file in tests/benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("nasgrow needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/constraints.txt \
	  $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
