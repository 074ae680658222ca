# Spillway. `make help` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help

# GoMLX multiplies matrices about eight times faster with Go's SIMD experiment; toolchains without it build the same program, slower.
SIMD := $(shell GOEXPERIMENT=simd go env GOEXPERIMENT >/dev/null 2>&1 && echo simd)
export GOEXPERIMENT := $(SIMD)

# Temporal's own scaling of workers by Kubernetes, which the engine does not use, is a fifth of the binary: its sources leave it out under
# this tag. Apps that the engine builds are built with the flags of whoever runs it.
APPFLAGS := $(shell go env GOFLAGS)
export GOFLAGS := $(strip -tags=release $(APPFLAGS))

BIN := bin
# What runs commands as functions is sent to them: it needs no library of this machine, and every megabyte is in each cold start.
RUNNER := env CGO_ENABLED=0 go
RUNNERFLAGS := -ldflags='-s -w'
TOOLS := GOEXPERIMENT= go tool -modfile=deploy/tools.mod
PACKAGES := ./...
# The evaluator is a module of its own, so that the Kubernetes code it measures against is in no product binary.
EVAL := cmd/spillway-eval
# The check of dashboards and rules is another, because it parses them with Prometheus's own code.
CHECK := deploy/check
# What is kept in S3 is tried on a server of it in a third, so that the server is in no product binary.
S3CHECK := cmd/s3check
# Signing in is tried with a real identity provider in another, so that the provider is in no product binary.
OIDCCHECK := cmd/oidccheck
# Several hosts, and the servers that exist where they are used, are a fourth, which needs root.
HOSTSCHECK := cmd/hostscheck

# Two models of the tests are meant to be wrong.
PYTHON_FILES = $(shell git ls-files '*.py' ':!workers/exec/torch/testdata/syntax.py' ':!workers/exec/torch/testdata/broken.py')
PYTHON_CONFIG := workers/exec/torch/pyproject.toml
PYTHON_TOOLS := $(BIN)/python-tools

.PHONY: help
help: ## List the targets.
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Run the sample pipeline end to end on this machine.
	@GOFLAGS="$(APPFLAGS)" $(BIN)/spillway run digits

.PHONY: build
build: ## Build spillway, the runner of commands at functions and the sample app into bin/.
	@mkdir -p $(BIN)
	@.ci/progress "building spillway and the digits app (the first build compiles Temporal and takes minutes)" go build -o $(BIN)/ ./cmd/spillway ./cmd/digits
	@.ci/progress "building what runs commands as functions" $(RUNNER) build $(RUNNERFLAGS) -o $(BIN)/ ./cmd/spillway-runner

.PHONY: install
install: ## Install spillway, its runner and digits where `go install` puts programs.
	@.ci/progress "installing spillway and digits (the first build takes minutes)" go install ./cmd/spillway ./cmd/digits
	@.ci/progress "installing what runs commands as functions" $(RUNNER) install $(RUNNERFLAGS) ./cmd/spillway-runner

PLATFORMS :=

.PHONY: release
release: ## Build the archives of a release, their checksums and what is in them into bin/release: make release PLATFORMS="linux/amd64 darwin/arm64" (default all)
	@.ci/progress "building a release (the first build for a platform takes minutes)" .ci/release $(BIN)/release $(PLATFORMS)

.PHONY: test
test: ## Run all tests.
	@.ci/progress "compiling the tests (the first time takes minutes)" go build $(PACKAGES)
	go test -timeout 30m $(TESTFLAGS) $(PACKAGES)
	cd $(EVAL) && go test $(TESTFLAGS) ./...
	cd $(CHECK) && go test $(TESTFLAGS) ./...
	cd $(S3CHECK) && go test -timeout 30m $(TESTFLAGS) ./...
	cd $(OIDCCHECK) && go test $(TESTFLAGS) ./...

.PHONY: test-hosts
test-hosts: ## Run pipelines on several hosts (network namespaces), on Temporal, PostgreSQL, NATS and S3 that exist, and break one after another. A quarter of an hour, as root.
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		! { ls /usr/lib/postgresql/*/bin/initdb && command -v ip; } >/dev/null 2>&1; then \
		apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends postgresql iproute2; fi
	cd $(HOSTSCHECK) && go test -count=1 -v -timeout 30m $(TESTFLAGS) ./...

.PHONY: security
security: ## Attack every port, file and message as a web page, another user and a stage would (part of make test; as root it also changes users).
	@.ci/attacks $(PACKAGES)

.PHONY: race
race: ## Run all tests under the race detector (GoMLX's assembly is left out of its pointer checks).
	go test -race -gcflags='github.com/gomlx/compute/...=-d=checkptr=0' -timeout 60m $(TESTFLAGS) $(PACKAGES)
	cd $(S3CHECK) && go test -race -timeout 60m $(TESTFLAGS) ./...
	cd $(OIDCCHECK) && go test -race $(TESTFLAGS) ./...

FUZZTIME := 60s

.PHONY: fuzz
fuzz: ## Give every fuzz target FUZZTIME, and those of the evaluator; tell each: make fuzz FUZZTIME=10m
	@.ci/fuzz $(FUZZTIME) . $(EVAL)

KILLS := 200
SEED := 1

.PHONY: upgrade-check
upgrade-check: ## Start runs with the engine of an earlier commit, kill it half-way and finish them with this one; upgrade a server and its agent from it, and go back: make upgrade-check FROM=COMMIT
	SPILLWAY_UPGRADE_FROM=$(or $(FROM),$(error name the earlier commit: make upgrade-check FROM=COMMIT)) \
		go test -count=1 -v -timeout 30m -run 'TestRunsThatAnEarlierEngineBeganFinish|TestServersAndAgentsOneVersionApart' ./cmd/internal/engine

.PHONY: chaos
chaos: build ## Kill the engine and its processes at seeded moments, fill its disk, skew its clocks, and check what is left: make chaos KILLS=200 SEED=1
	@go build -o $(BIN)/chaos/ ./cmd/internal/chaos/app ./cmd/internal/chaos/program
	@$(BIN)/chaos/program --engine $(BIN)/spillway --app $(BIN)/chaos/app --kills $(KILLS) --seed $(SEED)

.PHONY: bench
bench: ## Run the benchmarks of the deciding code.
	go test -run '^$$' -bench . -benchmem ./predictor/...

.PHONY: measure
measure: ## Take the end-to-end figures: scale, latency, overhead. Minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 30m -run 'TestTenThousand|TestAThousand|TestEventTo|TestOverhead|TestTheBinary|TestWhereTheTime|TestTheLedger|TestACachedRerun|TestWatchingCosts|TestTheEngineIsNoLarger' ./cmd/internal/engine ./cmd/digits ./cmd/spillway
	SPILLWAY_MEASURE=1 go test -count=1 -v -run 'TestNoRunPasses|TestABudgetThat' ./workflows/internal/account
	SPILLWAY_MEASURE=1 go test -count=1 -v -run 'TestIdleStreamsCostLittle|TestARunOfTenThousandAttempts' ./cmd/internal/web ./cmd/internal/web/browsertest

.PHONY: measure-space
measure-space: ## Train on a disk of a gigabyte until 720 checkpoints are stored, beside runs that leave artifacts. Minutes, as root, with PyTorch.
	SPILLWAY_MEASURE=1 SPILLWAY_TEST_REQUIRE=torch,mount go test -count=1 -v -timeout 30m -run 'TestADiskOfAGigabyte' ./cmd/internal/space

.PHONY: measure-ledger
measure-ledger: ## Take the figures of the ledger, logs and collections: how a year grows, what bills of many runs take. Minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 30m -run '(Is|Are)Measured$$|TestMeasure' ./activities/ledgerstore ./activities/logs ./cmd/internal/space

HOSTS_GRID :=

.PHONY: measure-hosts
measure-hosts: ## Play up to 1,000 hosts and 10,000 stages to a real server, and tell what ticks, memory and traffic come to: make measure-hosts HOSTS_GRID=100x1000 (default 9 sizes). Ten minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 SPILLWAY_HOSTS_GRID=$(HOSTS_GRID) go test -count=1 -v -timeout 60m -run 'TestManyHosts$$' ./cmd/internal/engine

.PHONY: measure-sizes
measure-sizes: ## Take the figures of sizes: how close they are, how fast they change, what is left behind. Minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 60m -run 'TestTenRuns|TestUtilisation|TestFirstRuns|TestRunningOutOfMemory|TestIdleStages' ./cmd/internal/engine
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 10m -run 'TestManyAttempts|TestMeasure|TestWhatAWorkspaceCosts' ./workers/agent ./workers/enforce ./workers/command

.PHONY: measure-sizes-v2
measure-sizes-v2: ## Take the figures of first runs on cgroup v2, in a virtual machine (see workers/enforce/testdata/vm.sh): emulated by qemu, an hour, and its times say nothing; or with ACCEL=uml SLOW=8.
	cd workers/enforce && PACKAGE=../../cmd/internal/engine APPS='digits=../../digits testapp-0=./testdata/app' MEMORY=4096 MINUTES=120 SPILLWAY_MEASURE=1 testdata/vm.sh -test.v -test.run TestFirstRuns

.PHONY: measure-speed
measure-speed: ## Compare predicted with measured speed at 0.5, 1 and 2 cores for eight real programs. Minutes, on an otherwise idle machine, as root, with PyTorch.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 20m -run 'TestMeasureSpeeds$$' ./workers/enforce

.PHONY: measure-functions
measure-functions: ## Take the figures of functions: cold and warm invokes, invokes a second, batches of tasks, a burst at pool, functions and both. Minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -run 'TestInvokesAreMeasured$$' ./activities/awslambda
	SPILLWAY_MEASURE=1 go test -count=1 -v -run 'TestBatchesAreMeasured$$' ./workers/spill
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 60m -run 'TestABurstIsMeasured$$' ./cmd/internal/engine

PYTHON := python3

.PHONY: measure-tuners
measure-tuners: build ## Tune the same job with spillway tune, Optuna and Ray Tune, three times in turns: make measure-tuners PYTHON=bin/tuners/bin/python (see cmd/spillway-eval/peers). On an otherwise idle machine.
	SPILLWAY=$(abspath $(BIN))/spillway $(PYTHON) $(EVAL)/peers/measure.py workflows/digits/data/digits.csv.gz 3

.PHONY: measure-overload
measure-overload: ## Take the figures of bursts: 500 and 5,000 runs at once, at rest and beside busy cores, beside bare Temporal. Half an hour, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 90m -run 'TestOverload$$' ./cmd/internal/engine

RUNS := 20000
SAMPLES := 2000000

.PHONY: soak
soak: ## Run many short runs beside many samples, and tell what grows: make soak RUNS=20000 SAMPLES=2000000
	SPILLWAY_SOAK_RUNS=$(RUNS) SPILLWAY_SOAK_SAMPLES=$(SAMPLES) go test -count=1 -v -timeout 4h -run 'TestSoak$$' ./cmd/internal/engine

.PHONY: measure-training
measure-training: ## Take the figures of split training: the same result, bubbles, speed beside plain PyTorch, predictions. Half an hour, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 60m -p 1 -run 'TestMeasure|KeepsTheContract|TestStagesRunAtTheSameTime' ./workers/exec/torch ./workers/exec/gomlx
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 60m -run 'TestMeasurePredictions' ./workers/training

REPETITIONS := 3

.PHONY: measure-tune-live
measure-tune-live: ## Tune and train the sample by a uniform allocation and as Spillway allots, in turns: make measure-tune-live REPETITIONS=3. Three minutes on two otherwise idle cores.
	SPILLWAY_MEASURE=1 SPILLWAY_TUNE_LIVE_REPETITIONS=$(REPETITIONS) go test -count=1 -v -timeout 30m -run 'TestMeasureTuneLive$$' ./cmd/internal/engine

.PHONY: measure-exchange
measure-exchange: ## Compare predicted with measured epochs of trainings by several workers, over workers, sizes and channels. Ten minutes, on an otherwise idle machine.
	SPILLWAY_MEASURE=1 go test -count=1 -v -timeout 30m -run 'TestMeasureEpochs' ./activities/exchange

.PHONY: gpu-check
gpu-check: ## Build bin/gpu-check.tar.gz, which shows on any Linux machine with a GPU what works there and how fast.
	@.ci/progress "building the check of GPU machines" .ci/gpu-check $(BIN)/gpu-check.tar.gz

.PHONY: eval
eval: ## Replay recorded data against the predictor and the planner: make eval DATA=DIR
	cd $(EVAL) && go run . sizing --data $(abspath $(DATA))
	cd $(EVAL) && go run . partition --data $(abspath $(DATA))
	cd $(EVAL) && go run . tasks --data $(abspath $(DATA))

.PHONY: python-tools
python-tools: ## Install ruff, mypy and pytest into bin/ (needs Python 3.10 and, once, the network).
	@.ci/python-tools $(PYTHON_TOOLS)

.PHONY: lint
lint: python-tools ## Check style, import directions and determinism of workflows.
	@git ls-files '*.py' '*.ts' '*.svelte' '*.css' '*.html' '*.sh' ':!cmd/internal/web/dist' | xargs awk \
		'length > 120 { print FILENAME ":" FNR ": the line is over 120 characters"; bad = 1 } END { exit bad }'
	$(TOOLS) golangci-lint run $(PACKAGES)
	$(TOOLS) workflowcheck -config deploy/workflowcheck.yaml ./workflows ./workflows/runs ./workflows/chain ./workflows/digits
	go mod tidy -diff
	$(PYTHON_TOOLS)/bin/ruff check --no-cache --config $(PYTHON_CONFIG) $(PYTHON_FILES)
	$(PYTHON_TOOLS)/bin/ruff format --no-cache --check --config $(PYTHON_CONFIG) $(PYTHON_FILES)
	$(PYTHON_TOOLS)/bin/mypy --cache-dir $(BIN)/mypy --config-file $(PYTHON_CONFIG) $(PYTHON_FILES)
	cd $(EVAL) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint run ./... && go mod tidy -diff
	cd $(CHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint run ./... && go mod tidy -diff
	cd $(S3CHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint run ./... && go mod tidy -diff
	cd $(OIDCCHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint run ./... && go mod tidy -diff
	cd $(HOSTSCHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint run ./... && go mod tidy -diff

PAGE := cmd/internal/web/ui

.PHONY: page
page: ## Check and rebuild the page from its sources (needs Node 20; building the engine does not).
	cd $(PAGE) && npm ci --no-audit --no-fund && npm run check && npm test && npm run build

.PHONY: fmt
fmt: python-tools ## Format the code.
	$(TOOLS) golangci-lint fmt $(PACKAGES)
	$(PYTHON_TOOLS)/bin/ruff check --no-cache --select I --fix --config $(PYTHON_CONFIG) $(PYTHON_FILES)
	$(PYTHON_TOOLS)/bin/ruff format --no-cache --config $(PYTHON_CONFIG) $(PYTHON_FILES)
	@# Other modules lie below; what is local to them is not what is local here.
	cd $(EVAL) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint fmt ./...
	cd $(CHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint fmt ./...
	cd $(S3CHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint fmt ./...
	cd $(OIDCCHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint fmt ./...
	cd $(HOSTSCHECK) && GOEXPERIMENT= go tool -modfile=../../deploy/tools.mod golangci-lint fmt ./...

.PHONY: clean
clean: ## Remove what make built.
	rm -rf $(BIN)
