# make demo and make test do everything on a fresh machine; the environment is .venv, pinned by requirements.lock.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: setup demo test quick test-oldest test-newest test-examples docs faults fuzz lint format lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed; make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

demo: setup
	$(VENV)/bin/amata compare mnist5k-pgd mnist5k-amata --out runs/demo

test: setup
	$(VENV)/bin/python -m pytest -n 3  # on two cores: tests also wait for processes

# The tests to run while working: all but the slow ones.
quick: setup
	$(VENV)/bin/python -m pytest tests -n 2 -m "not slow"

# The core on the oldest dependencies that pyproject.toml claims, and on the newest there are. Its files show
# what a version of torch, numpy, pydantic, typer, rich, safetensors or filelock changes.
CORE := schedules threat losses seeds methods attacks fit control recipes evaluation models optim engine \
  stored run_folder checkpoints locks closed_loop quantity
CORE_NEEDS := pytest hypothesis mlxtend pillow pyautoattack foolbox
FLOORS := import tomllib; print(*(d.replace(">=", "==") for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]), sep="\n")

test-oldest: .venv-oldest/.ready
test-newest: .venv-newest/.ready
test-oldest test-newest:
	@$(dir $<)bin/python -m pip list --format freeze --disable-pip-version-check | grep -E "^(torch|numpy|pydantic|typer|rich|safetensors|filelock)="
	PYTHONPATH=src $(dir $<)bin/python -m amata recipes > /dev/null
	PYTHONPATH=src $(dir $<)bin/python -m pytest -p no:cacheprovider -m "not slow" $(CORE:%=tests/test_%.py)

.venv-oldest/.ready .venv-newest/.ready: pyproject.toml
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(PYTHON) -c '$(FLOORS)' | sed '$(if $(findstring newest,$@),s/==.*//)' > $(@D)/core.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $(@D)/core.txt $(CORE_NEEDS)
	touch $@

# The notebook of the tutorial, and the examples with packages that the lock leaves out.
test-examples: .venv-examples/.ready
	PYTHONPATH=src $(dir $<)bin/python -m pytest -p no:cacheprovider tests/test_docs.py -k "notebook or example"

.venv-examples/.ready: requirements.lock
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock nbclient ipykernel lightning accelerate
	touch $@

# The documentation site, in site/. Broken links and anchors are errors. Its tools have an environment of their own.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/.ready: requirements-docs.lock
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	touch $@

# Kills, damaged files, full disks and more, 200 random trials: about five minutes on two cores.
faults: setup
	PYTHONPATH=src $(VENV)/bin/python -m tests.faults --trials 200

# Hostile recipes, command lines and arguments, for ten minutes.
fuzz: setup
	PYTHONPATH=src $(VENV)/bin/python -m tests.fuzz --minutes 10

lint: setup
	$(VENV)/bin/ruff check src tests evidence examples
	$(VENV)/bin/ruff format --check src tests evidence examples
	$(VENV)/bin/mypy

format: setup
	$(VENV)/bin/ruff format src tests evidence examples
	$(VENV)/bin/ruff check --fix src tests evidence examples

# Pins what is installed now, without the local build tag of torch, which differs from machine to machine.
lock:
	$(VENV)/bin/python -m pip freeze --all --exclude pip --exclude-editable | sed 's/+[a-z0-9.]*$$//' > requirements.lock

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-examples .venv-docs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
