# Everything a newcomer types. Needs Python 3.11 to 3.13 and make; sets up the rest in .venv, at the versions of constraints.txt.
#
#   make PYTHON=python3.12 ...   a particular interpreter; otherwise that of .venv, or the first one that fits. Where .venv
#                                has another version, this one gets an environment of its own: .venv-3.12.1
#   make TORCH_BACKEND=cpu ...   PyTorch's CPU build instead of the one PyPI serves (on Linux: CUDA, several gigabytes);
#                                needs access to PyTorch's own package index. Also: auto, cu130, rocm6.4, ... (uv's names)
#
#   make PYTHON_READY=/path/to/python3 ...   an environment that has everything already, for instance on a machine without a
#                                network: nothing is set up or fetched, and pytest loads only the plugins that the tests need
#
# The wheel folders and the index that pip is configured with are handed to uv, which does not read pip's settings:
# a PyTorch wheel that lies in one of pip's find-links folders is used.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

SCALE ?= smoke
SEEDS ?= 1-3
RESULTS ?= runs/results
MINUTES ?= 9
# The two cores that the tests are made for. A third process would use what the others wait for, and cost them their caches:
# measured, it takes longer.
PROCESSES ?= 2
SEEDS_OF_ROUNDING ?= 1 2 3
TORCH_BACKEND ?=
PYTHON_READY ?=
DEMO := runs/demo
TRAIN_DEMO = $(COMT) train-lm --recipe table3.yaml --scale smoke --results $(DEMO)
GPU := runs/gpu
GPU_PACK := runs/gpu-pack
PACKING := runs/packing
# What a machine may lack that has PyTorch, Triton, torchvision, transformers, NumPy, SciPy, pandas and matplotlib: small wheels.
GPU_WHEELS := annotated-doc annotated-types babel click datasets dill execnet hypothesis iniconfig liger-kernel markdown-it-py \
	mdurl multiprocess packaging platformdirs pluggy portalocker pydantic pydantic-core pygments pytest pytest-timeout \
	pytest-xdist rich ruamel-yaml sacrebleu sacremoses sentencepiece shellingham sortedcontainers submitit tabulate typer \
	typing-extensions typing-inspection xxhash

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# .venv, unless a PYTHON is named and .venv has another version. One that does not run is refused where it is to be used.
ifeq ($(origin PYTHON),undefined)
VENV := .venv
else
VENV := $(shell \
	version() { "$$1" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null; }; \
	named="$$(version '$(PYTHON)')" || named=none; there="$$(version .venv/bin/python)" || there="$$named"; \
	[ "$$named" != none ] && [ "$$named" = "$$there" ] && echo .venv || echo ".venv-$$named")
endif
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$p"; break; }; done)

BIN := $(VENV)/bin
HERE := $(if $(PYTHON_READY),$(PYTHON_READY),$(BIN)/python)
SET_UP := $(VENV)/.ready
LINT_READY := $(VENV)/.ready-lint
DOCS_READY := $(VENV)/.ready-docs
ifeq ($(PYTHON_READY),)
READY := $(SET_UP)
COMT := $(BIN)/comt
PYTEST := $(BIN)/pytest
else
READY :=
COMT := $(PYTHON_READY) -m comt_cli
PYTEST := $(PYTHON_READY) -m pytest -p xdist.plugin -p pytest_timeout -p _hypothesis_pytestplugin
# Warnings are errors, and plugins that an environment happens to have warn (pytest-benchmark's beside xdist).
export PYTEST_DISABLE_PLUGIN_AUTOLOAD := 1
endif

# In the order of the files: integration tests, the long ones, are not left to the end, where one process has nothing to do.
SHARED_OUT := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
RUN_TESTS := OMP_NUM_THREADS=1 $(PYTEST) $(SHARED_OUT)

PIP := $(BIN)/python -m pip --disable-pip-version-check
# A setting of pip's, from its environment variable or its files, with commas between several values.
pip_setting = { echo "$${$(2):-}"; $(PIP) config get global.$(1) 2>/dev/null || true; } | xargs -n1 | awk '!seen[$$0]++' | paste -sd, -
UV := links="$$($(call pip_setting,find-links,PIP_FIND_LINKS))"; index="$$($(call pip_setting,index-url,PIP_INDEX_URL))"; \
	[ -z "$$links" ] || export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$links}"; \
	[ -z "$$index" ] || export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${index%%,*}}"; \
	$(BIN)/uv
# Compiled at once: tests and workers start many processes, and where PYTHONDONTWRITEBYTECODE is set each would compile anew.
UV_INSTALL := $(UV) pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -b constraints.txt \
	$(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND))

.PHONY: help
help:  ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: $(SET_UP)  ## Set up the environment, nothing else

.PHONY: demo
demo: $(READY)  ## Table 3 of CoMT at scale smoke, and what its gates do: minutes on two cores
	@# Lines of progress are for a terminal: elsewhere a file has them, which is shown where the training fails.
	@mkdir -p $(DEMO)
	@echo $(TRAIN_DEMO); if [ -t 2 ]; then $(TRAIN_DEMO); else \
		$(TRAIN_DEMO) 2> $(DEMO)/training.log || { cat $(DEMO)/training.log >&2; exit 1; }; fi
	@for run in pre-ln+comt pre-ln+transponder; do for verb in analyze-gates plot-cosine; do \
		$(COMT) $$verb table3:$$run --scale smoke --results $(DEMO) || exit; done; done
	@echo; echo "All is in $(DEMO)/smoke/comt. Worth opening first:"
	@for file in table3.md table3-placement-norm.png figures/pre-ln+comt-python-docs-tiny-seed1/gate-summary.png; do \
		echo "  $(DEMO)/smoke/comt/$$file"; done

.PHONY: test
test: $(READY)  ## The tests, without those marked slow (those that need a GPU say that they are skipped)
	$(RUN_TESTS) -m "not slow"

.PHONY: test-all
test-all: $(READY)  ## All tests, those marked slow too: what starts many processes or compiles for long
	$(RUN_TESTS)

# tests/rounding says what is changed, and what is out of its reach.
.PHONY: test-rounding
test-rounding: $(READY)  ## All tests as on other processors: results in other shapes have other last bits; SEEDS_OF_ROUNDING=1 2 3
	@failed=; for seed in $(SEEDS_OF_ROUNDING); do echo "== seed $$seed"; \
		COMT_ROUNDING=$$seed PYTHONPATH="$(CURDIR)/tests/rounding$${PYTHONPATH:+:$$PYTHONPATH}" \
			$(RUN_TESTS) -o timeout=600 || failed="$$failed $$seed"; \
	done; [ -z "$$failed" ] || { echo "failed with the seeds:$$failed" >&2; exit 1; }

# What differs between versions of Python: sums, typing, data classes, help and its texts, archives, pickles, processes,
# the bytecode that Dynamo reads, the headers that C++ kernels are built with, the NumPy that there is for it.
VARYING := tests/contract/test_cli.py tests/contract/test_doctor.py \
	tests/contract/test_docs.py tests/contract/test_contributing.py tests/contract/test_methods_page.py \
	tests/contract/test_results_page.py::test_the_page_is_todays tests/contract/test_warnings.py \
	tests/contract/test_packaging.py tests/contract/test_isolation.py tests/contract/test_layering.py \
	tests/contract/test_surroundings.py tests/integration/test_interruptions.py tests/integration/test_many_processes.py \
	tests/integration/test_started_runs.py \
	tests/unit/campaign tests/unit/commands tests/unit/data tests/unit/exchange tests/unit/recipe tests/unit/runs \
	tests/unit/scoring tests/unit/test_installing.py tests/unit/test_sums.py tests/unit/kernels/test_cpu_build.py \
	tests/unit/kernels/test_operators.py tests/unit/layers/test_dropout.py tests/unit/training/test_compile.py \
	--ignore-glob=*test_analyze_* --ignore-glob=*test_recipes_build.py

.PHONY: test-subset
test-subset: $(READY)  ## Three minutes of tests of what differs between versions of Python; with PYTHON=python3.13, for instance
	$(RUN_TESTS) -m "not slow" $(VARYING)

# The part of the suite that computes: kernels, layers, models, the contracts of methods, training to the bit. The rest
# reads, writes and prints the same on every processor.
COMPUTING := tests/unit/kernels tests/unit/layers tests/unit/models tests/unit/exchange tests/unit/generation \
	tests/unit/training/test_step.py tests/unit/training/test_image_step.py tests/unit/training/test_evaluation.py \
	tests/unit/training/test_compile.py \
	tests/contract/test_methods.py tests/contract/test_initial_state.py tests/contract/test_golden_curves.py \
	tests/integration/test_resume.py tests/integration/test_fused_training.py tests/integration/test_image_runs.py \
	tests/integration/test_older_runs.py tests/integration/test_sharding.py
# What PyTorch's own code, oneDNN, MKL and NumPy's OpenBLAS take the processor for. The C++ kernels are always compiled
# for the processor itself (comt_cli/kernels/cpu/build.py).
ISAS := default:AVX2:SSE4_2:Nehalem avx2:AVX2:AVX2:Haswell avx512:AVX512_CORE:AVX512:SkylakeX

.PHONY: test-isas
test-isas: $(READY)  ## What computes, as on older processors: without AVX2, with AVX2, with AVX-512
	@failed=; for isa in $(ISAS); do \
		IFS=: read -r aten onednn mkl openblas <<< "$$isa"; \
		case $$aten in avx2) needs=avx2;; avx512) needs=avx512f;; *) needs=;; esac; \
		if [ -n "$$needs" ] && ! grep -qw "$$needs" /proc/cpuinfo; then \
			echo "== $$aten: skipped, this processor has no $$needs"; continue; fi; \
		echo "== $$aten (oneDNN $$onednn, MKL $$mkl, OpenBLAS $$openblas)"; \
		ATEN_CPU_CAPABILITY=$$aten ONEDNN_MAX_CPU_ISA=$$onednn MKL_ENABLE_INSTRUCTIONS=$$mkl OPENBLAS_CORETYPE=$$openblas \
			$(RUN_TESTS) $(COMPUTING) \
			|| failed="$$failed $$aten"; \
	done; [ -z "$$failed" ] || { echo "failed as:$$failed" >&2; exit 1; }

# In environments of their own, of gigabytes each: .venv-lowest-direct and .venv-highest (uv's words). The rest is pinned,
# but for what these two libraries ask for: an old Triton's interpreter fails beside a newer NumPy, and warns beside its own.
.PHONY: test-range
test-range: $(SET_UP)  ## What computes, with the oldest and with the newest PyTorch and Triton that pyproject.toml allows
	@failed=; for end in lowest-direct highest; do \
		venv=".venv-$$end"; $(BIN)/python -m venv --clear "$$venv"; \
		grep -vE '^(torch|torchvision|triton|nvidia-|cuda-|numpy=|setuptools=)' constraints.txt > "$$venv/constraints.txt"; \
		$(UV) pip install --quiet --compile-bytecode --python "$$venv/bin/python" --resolution "$$end" \
			-c "$$venv/constraints.txt" -e '.[gguf]' --group test || { failed="$$failed $$end"; continue; }; \
		echo "== $$($(BIN)/uv pip freeze --python "$$venv/bin/python" | grep -E '^(torch|torchvision|triton|numpy)==' | xargs)"; \
		OMP_NUM_THREADS=1 "$$venv/bin/pytest" $(SHARED_OUT) \
			-W "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning" $(COMPUTING) \
			|| failed="$$failed $$end"; \
	done; [ -z "$$failed" ] || { echo "failed with:$$failed" >&2; exit 1; }

# And the interpreted tests of Triton's kernels whose results a GPU may change: rows with gaps, NaN. Compiling takes
# longest: who has nothing to do takes from the others.
.PHONY: test-gpu
test-gpu: $(READY)  ## The tests that need a CUDA device; on a machine with 16 cores, PROCESSES=12
	OMP_NUM_THREADS=1 $(PYTEST) -n $(PROCESSES) --dist worksteal tests/gpu \
		tests/unit/kernels/test_gated_operations.py tests/unit/kernels/test_modulation.py

.PHONY: sanitize
sanitize: $(READY)  ## The GPU kernels under compute-sanitizer (part of the CUDA toolkit): memory errors, then races
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
		$(PYTEST) tests/gpu/test_kernels_gpu.py -k odd_shapes -o timeout=0
	compute-sanitizer --tool racecheck --target-processes all --error-exitcode 1 \
		$(PYTEST) tests/gpu/test_kernels_gpu.py -k odd_shapes -o timeout=0

.PHONY: reproduce
reproduce: $(READY)  ## Every recipe there is, with tables, figures and a page in RESULTS=runs/results; SCALE=smoke, evening, small or paper
	@# At scale smoke without recipes that try learning rates first: they are about evidence, and smoke is about minutes.
	$(COMT) reproduce --scale $(SCALE) $(if $(filter smoke,$(SCALE)),,--sweeps) --results $(RESULTS)
	$(COMT) report --html --results $(RESULTS)

.PHONY: record
record: $(READY)  ## The committed results: every recipe at scale smoke with SEEDS=1-3, into results/
	$(COMT) reproduce --scale smoke --seeds $(SEEDS) --results results
	$(COMT) report --html --results results

.PHONY: bench
bench: $(READY)  ## How fast this CPU trains and decodes, as far as MINUTES=9 go; what was measured goes to RESULTS/bench
	$(COMT) bench all --device cpu --minutes $(MINUTES) --results $(RESULTS)

# On a machine without a network that `make gpu-pack` packed for: make gpu PYTHON_READY=python3
.PHONY: gpu
gpu: $(READY)  ## On a GPU: its tests, tuning, speeds and a table, as far as MINUTES=9 go; the next call goes on from there
	@! ls $(GPU_PACK)/wheels/*.whl > /dev/null 2>&1 || [ -e $(GPU_PACK)/site/.ready ] || { $(HERE) -m pip install --quiet \
		--no-index --no-deps --no-compile --target $(GPU_PACK)/site $(GPU_PACK)/wheels/*.whl && touch $(GPU_PACK)/site/.ready; }
	@export PYTHONPATH="$(CURDIR)/$(GPU_PACK)/site$${PYTHONPATH:+:$$PYTHONPATH}"; [ ! -e $(GPU_PACK)/commit ] || \
		export COMT_COMMIT="$$(cat $(GPU_PACK)/commit)"; $(COMT) bench gpu --minutes $(MINUTES) --folder $(GPU)

.PHONY: gpu-pack
gpu-pack: $(READY)  ## One archive for a GPU machine without a network (x86-64, Python 3.12): sources, and wheels it may lack
	@rm -rf $(PACKING); mkdir -p $(PACKING)/wheels; absent=; for name in $(GPU_WHEELS); do \
		$(HERE) -m pip --disable-pip-version-check download -qq --no-deps --only-binary=:all: --implementation cp \
			--python-version 3.12 $(foreach glibc,_2_28 _2_27 _2_17 2014 1,--platform manylinux$(glibc)_x86_64) \
			--constraint constraints.txt --dest $(PACKING)/wheels "$$name" || absent="$$absent $$name"; \
	done; [ -z "$$absent" ] || echo "no wheel for:$$absent" >&2
	@$(HERE) -c 'from comt_cli.training.record import git_commit; print(git_commit() or "")' > $(PACKING)/commit
	@# Without results/, of which nothing there reads.
	@{ git ls-files -- . ':!results'; find $(PACKING) -type f; } | tar --create --gzip --files-from=- \
		--transform 's,^$(PACKING)/,$(GPU_PACK)/,' --transform 's,^,comt/,' --file $(GPU_PACK).tar.gz
	@rm -r $(PACKING); du -h $(GPU_PACK).tar.gz
	@echo "There: tar -xf gpu-pack.tar.gz; cd comt; make gpu PYTHON_READY=python3"

.PHONY: measured
measured:  ## Ship measurements of results/bench, for `kernels: auto` and the plans of `comt show`
	rm -rf comt_cli/kernels/measured
	for file in results/bench/*/{kernels,step-images}.csv results/bench/nvidia-*/step.csv; do \
		folder="comt_cli/kernels/measured/$$(basename "$$(dirname "$$file")")"; mkdir -p "$$folder"; cp "$$file" "$$folder"; done

.PHONY: doctor
doctor: $(READY)  ## What this machine can do, and what to fix
	$(COMT) doctor

.PHONY: docs
docs: $(DOCS_READY)  ## The documentation site, in build/docs/html; needs no network after setup
	@$(BIN)/python docs/site/build.py build/docs

.PHONY: docs-serve
docs-serve: docs  ## The documentation site at http://localhost:8000, with search
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory build/docs/html

.PHONY: findings
findings: $(READY)  ## results/FINDINGS.md and its figures, from the committed tables and docs/findings.md.j2
	@$(HERE) docs/findings.py

.PHONY: lint
lint: $(LINT_READY)  ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.PHONY: format
format: $(LINT_READY)  ## Rewrite the code in the house format
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

.PHONY: constraints
constraints: $(SET_UP)  ## Choose the newest versions that fit and write them to constraints.txt
	printf '%s\n' torch==2.13.0 torchvision==0.28.0 "triton==3.7.1; sys_platform == 'linux'" \
	| env -u UV_FIND_LINKS $(BIN)/uv pip compile pyproject.toml - --extra gguf --group test --group lint --group docs --universal \
		--python-version 3.11 --upgrade --no-annotate --custom-compile-command "make constraints" --quiet \
		--output-file constraints.txt

.PHONY: clean
clean:  ## Remove environments, caches and built files; keeps runs/ and results/
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find comt_cli tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python='$(PYTHON)'; if ! "$${python:-none}" -c '$(SUPPORTED)' 2>/dev/null; then \
		echo "comt needs Python 3.11, 3.12 or 3.13, and $${python:-python3} is none of them ($$("$${python:-python3}" --version 2>&1 || true))." >&2; \
		echo "Install one (for instance apt-get install python3.12 python3.12-venv, or brew install python@3.12), or name it: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; fi; \
	"$$python" -m venv --clear $(VENV) || { \
		echo "$$python could not make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(SET_UP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) with $$($(BIN)/python --version) ..."
	@$(PIP) install --quiet -c constraints.txt uv
	@$(UV_INSTALL) --quiet -e '.[gguf]' --group test
	@$(BIN)/python -m compileall -q comt_cli
	@# Every Python here starts with the hook for torchvision (comt_cli/torchvision_hook.py): scripts may import transformers first.
	@echo 'import importlib.util as u; u.find_spec("comt_cli") and __import__("comt_cli")' > \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/comt_torchvision.pth"
	@touch $@

$(DOCS_READY): $(SET_UP)
	@$(UV_INSTALL) --quiet --group docs
	@touch $@

$(LINT_READY): $(SET_UP)
	@$(UV_INSTALL) --quiet --group lint
	@touch $@
