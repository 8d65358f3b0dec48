# What makes, tests and measures Fencepost.

# What the tests start for real, and the Debian packages that bring it.
TOOLS := redis-server sqlite3 curl unshare mount
PACKAGES := redis-server sqlite3 curl util-linux mount

.PHONY: help build test model check doc openapi bench bench-wait bench-quorum tools

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## Build the program: target/release/fencepost
	cargo build --release

test: tools ## Install what the tests need where it is missing, and run all of them
	cargo test

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

tools:
	@missing=; for tool in $(TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(PACKAGES) >/dev/null; \
	else \
		echo "missing:$$missing. Please install the packages $(PACKAGES) (Debian: sudo apt-get install $(PACKAGES))" >&2; \
		exit 1; \
	fi
