# What makes, tests and measures Fencepost.

# What the tests start for real, each with the Debian package that brings it.
TOOLS := redis-server:redis-server sqlite3:sqlite3 curl:curl unshare:util-linux mount:mount python3:python3 \
	node:nodejs npm:npm systemd-analyze:systemd

.PHONY: help build test model check doc openapi bench bench-wait bench-quorum tools clients

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## Build the program: target/release/fencepost
	cargo build --release

# Whoever starts this in the background of a script has it ignore SIGINT, and with it each program that it starts.
test: tools clients ## Install what the tests need where it is missing, and run all of them
	env --default-signal=HUP,INT,QUIT cargo test

model: ## Search the model of the quorum store with larger bounds: some minutes, and some gigabytes
	MODEL=long cargo test --test model quorum -- --nocapture

check: ## Format and lints
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

doc: ## The code's own documentation
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items

openapi: ## Write openapi/openapi.json anew from the handlers
	cargo run --quiet -- openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

bench: tools ## Measure the gateway against a handler that does nothing
	cargo bench --bench gateway

bench-wait: tools ## Measure waiting in line: hand-offs, and what a crowd costs others
	cargo bench --bench waiting

bench-quorum: tools ## Measure a quorum of five against a single Redis, and with a node that stands still
	cargo bench --bench quorum

tools: ## Install what the tests need where it is missing
	@missing=; packages=; \
	for tool in $(TOOLS); do \
		command -v $${tool%:*} >/dev/null || { missing="$$missing $${tool%:*}"; packages="$$packages $${tool#*:}"; }; \
	done; \
	python3 -c 'import ensurepip' 2>/dev/null || { missing="$$missing venv"; packages="$$packages python3-venv"; }; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >/dev/null; \
	else \
		echo "missing:$$missing. Please install the packages$$packages (Debian: sudo apt-get install$$packages)" >&2; \
		exit 1; \
	fi

clients: tools ## Install what the clients are made, checked and run with: target/clients
	tests/clients/install
