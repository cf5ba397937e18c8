# The ways to run, check and build Sluice. Plain cargo does as well for all that leaves TigerBeetle
# out; what needs it sources .tools/env, which scripts/tools.sh writes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# On CI a Cargo.lock that lags behind Cargo.toml is a mistake; at a desk cargo mends it.
LOCKED := $(if $(CI),--locked)
WITH_TOOLS := source .tools/env &&
# Tests that load several servers or a browser at once, or whose bounds are short: each has the machine to itself. The others mostly wait,
# so that four at a time take little more than half as long as two.
ALONE := browser:: slab_fleet:: tigerbeetle_faults:: tigerbeetle_sessions:: hub_fleet:: hub_lending:: hub_faults::on_tigerbeetle::

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## serve on the memory ledger with config/ (more flags: make run ARGS='--grpc 127.0.0.1:9081')
	cargo run --release -- serve $(ARGS)

.PHONY: test
test: lint $(if $(wildcard deny.toml),deny) ## everything: format, lints, unit, integration, real TigerBeetle, real Envoy
	$(WITH_TOOLS) cargo test $(LOCKED) --all-features -- --test-threads=4 $(ALONE:%=--skip %)
	$(WITH_TOOLS) cargo test $(LOCKED) --all-features --test it -- --test-threads=1 $(ALONE)

.PHONY: torture
torture: ## slabs through as many simulated faults as one likes: make torture SEEDS=10000 [FIRST=seed]
	SLUICE_SEEDS=$(or $(SEEDS),1000) SLUICE_FIRST_SEED=$(FIRST) \
		cargo test $(LOCKED) --release --test it slab_simulation::torture -- --exact --include-ignored --nocapture

.PHONY: lint
lint: tools ## format and clippy, warnings are errors
	cargo fmt --check
	$(WITH_TOOLS) cargo clippy $(LOCKED) --all-targets --all-features -- -D warnings

.PHONY: deny
deny: tools ## licenses and sources of the dependencies (advisories need a database from outside)
	.tools/bin/cargo-deny $(LOCKED) --all-features check bans licenses sources

.PHONY: bench
bench: tools bench-tools ## one run, one table: Sluice on both ledgers against its ceilings, and instruction counts
	$(WITH_TOOLS) cargo bench --profile dist $(LOCKED) --all-features --bench table

.PHONY: bench-instructions
bench-instructions: tools bench-tools ## only the instructions per decision, which are not noise (benches/instructions.txt)
	$(WITH_TOOLS) cargo bench --profile dist $(LOCKED) --all-features --bench table -- instructions

.PHONY: bench-tools
bench-tools: # h2load and valgrind
	@scripts/tools.sh bench

.PHONY: demo
demo: tools build-tigerbeetle ## an LLM gateway on loopback: Envoy, TigerBeetle, Sluice and a model, and the curl lines to try
	@scripts/demo.sh

.PHONY: demo-check
demo-check: tools build-tigerbeetle ## the same, typing those lines and comparing the answers with README.md
	@scripts/demo.sh check

.PHONY: build-tigerbeetle
build-tigerbeetle: ## target/release/sluice with the feature tigerbeetle
	@scripts/tools.sh build
	$(WITH_TOOLS) cargo build $(LOCKED) --release --features tigerbeetle

.PHONY: tools
tools: ## fill .tools/: Zig, libclang, Envoy, TigerBeetle (the others call it when they need it)
	@scripts/tools.sh
