# The habits of this project, one recipe each. CI calls the same ones.

CARGO ?= cargo
# Loading eBPF and making namespaces needs root; sudo asks for it where we are not.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
# Most tests wait for links and timers, so at least four run at a time, whatever the number of processors.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(nproc) < 4 ? 4 : $$(nproc) )))

.PHONY: help demo test test-root lint fmt bench bench-proxies bench-dtn bench-ltp bench-telemetry bench-upgrade upgrade-faults figures page-pictures railway peers interop-dtn conformance neighbours squid unsplit kernels python wheel bench-python setup deny fuzz soak optimised package try-package router openwrt image arm64 web clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## a download over a GEO satellite, with and without bentpipe
	$(CARGO) build --profile demo --locked -p bentpipe
	$(AS_ROOT) target/demo/bentpipe demo

test: setup lint deny ## everything that CI runs
	@scripts/setup-peers chromium || echo "Without Chromium the tests of the live page are skipped."
	@scripts/setup-peers web || echo "Without Rust for WebAssembly, the tests of the simulator in a browser are skipped."
	@scripts/setup-peers prometheus || echo "Without Prometheus, the tests that load the alerts and the dashboard's queries are skipped."
	@scripts/setup-peers readers || echo "Without systemd-analyze, mandoc, zsh, fish, tshark and tcpdump, the tests of units, manual pages, completions and captures are skipped."
	$(CARGO) test --workspace --locked
	@if scripts/setup-peers python; then BENTPIPE="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/bentpipe" scripts/python test && scripts/python notebooks; else echo "Without the packages of python/requirements.txt the tests of the Python package are skipped."; fi
	@[ "$$(id -u)" -eq 0 ] || echo "The tests that need root were skipped: run them with 'make test-root'."

test-root: setup ## only the tests that need root: namespaces, eBPF, interception
	$(CARGO) test --workspace --locked --no-run --test 'root*'
	$(AS_ROOT) env "PATH=$$PATH" "RUST_TEST_THREADS=$$RUST_TEST_THREADS" $(CARGO) test --workspace --locked --test 'root*'

lint: setup ## formatting, import cycles and clippy; warnings are errors
	$(CARGO) fmt --all --check
	scripts/check-layers
	scripts/conformance --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p bentpipe --bins --no-default-features --locked -- -D warnings
	$(CARGO) clippy -p bentpipe --bins --no-default-features --features dtn --locked -- -D warnings

fmt: ## format the code
	$(CARGO) fmt --all

bench: setup ## what a packet and a connection cost, how precise the link is, how flows restart and share
	$(CARGO) bench --workspace --locked
	$(CARGO) build --release --locked --workspace --examples
	$(AS_ROOT) target/release/examples/link_precision
	$(AS_ROOT) target/release/examples/many_connections --quick
	$(AS_ROOT) target/release/examples/restart
	$(AS_ROOT) target/release/examples/fairness 0
	$(AS_ROOT) target/release/examples/fairness 1%

bench-proxies: setup ## bentpipe beside plain forwarding and HAProxy: throughput, processor time, connections, latency
	scripts/setup-peers haproxy
	$(CARGO) build --release --locked -p bentpipe
	$(CARGO) build --release --locked -p bentpipe-proxy --example proxy_benchmark
	$(AS_ROOT) target/release/examples/proxy_benchmark $(OPTIONS)

bench-upgrade: setup ## what clients notice of upgrades, reloads and draining, beside nothing at all
	$(CARGO) build --release --locked -p bentpipe --bin bentpipe --example upgrades
	$(AS_ROOT) target/release/examples/upgrades $(OPTIONS)

upgrade-faults: setup ## successors frozen, killed and silent at 200 moments of upgrades, with 100 downloads: minutes
	$(CARGO) test --locked -p bentpipe --test root --no-run
	$(AS_ROOT) env "PATH=$$PATH" UPGRADE_FAULTS=$${UPGRADE_FAULTS:-200} \
		$(CARGO) test --locked -p bentpipe --test root upgrade::faults -- --nocapture

bench-ltp: setup ## bundle nodes over an emulated satellite link, by LTP and by TCPCLv4: 25 minutes
	$(CARGO) build --release --locked -p bentpipe-dtn --example over_a_link
	$(AS_ROOT) chrt -r 20 target/release/examples/over_a_link $(OPTIONS)

bench-dtn: setup ## bundle nodes beside those of dtn7-rs: time, memory, bundles in a second
	scripts/setup-peers dtn7
	$(CARGO) build --release --locked -p bentpipe
	$(CARGO) build --release --locked -p bentpipe-dtn --example against_dtn7
	target/release/examples/against_dtn7 compare $(OPTIONS)

bench-telemetry: setup ## what it costs to see thousands of flows, in the daemon and by `bentpipe status`
	$(CARGO) build --release --locked -p bentpipe
	$(CARGO) build --release --locked -p bentpipe-proxy --example cost_of_telemetry
	$(AS_ROOT) target/release/examples/cost_of_telemetry $(OPTIONS)

figures: setup ## the figures of the documentation, drawn anew
	$(CARGO) build --release --locked -p bentpipe -p bentpipe-lab --examples
	$(CARGO) build --release --locked -p bentpipe
	$(AS_ROOT) target/release/bentpipe demo --out docs/figures
	$(AS_ROOT) target/release/examples/hybla_slow_start docs/figures/hybla-slow-start.svg
	target/release/bentpipe lab run all --out docs/experiments
	$(AS_ROOT) target/release/bentpipe lab run psats09-fig4 psats09-fig5 pepsal-congestion pepsal-per pepsal-both pepsal-fairness radius07-reach radius07-step surrey-fig2 surrey-fig3 surrey-fig4 iwssc09-asymmetric iwssc09-loss xcp-fairness lossy-link snoop-senders p-xcp-boxes explicit-shares unknown-capacity leo rain-fade shared-leg return-link one-way short-downloads crowd dtn-disruptive agreement --on kernel --out docs/experiments
	target/release/bentpipe radius --figure docs/figures/radius.svg

page-pictures: setup ## pictures of the live page and the simulator's: over an emulated GEO link for docs/figures, and in each state in target/page-pictures
	scripts/setup-peers chromium web
	$(CARGO) test --locked -p bentpipe --test root --no-run
	$(AS_ROOT) env "PATH=$$PATH" PAGE_PICTURES="$(CURDIR)/docs/figures" \
		$(CARGO) test --locked -p bentpipe --test root live_page::pictures
	mkdir -p target/page-pictures
	PAGE_PICTURES="$(CURDIR)/target/page-pictures" $(CARGO) test --locked -p bentpipe-admin --test integration live_page::pictures
	WEB_PICTURES="$(CURDIR)/target/page-pictures" $(CARGO) test --locked -p bentpipe-web --test integration page::pictures
	cp target/page-pictures/browser-1440-light.png docs/figures

web: setup ## the simulator in a browser, one page that needs nothing else: target/web/bentpipe.html
	@scripts/setup-peers web
	scripts/web

railway: setup ## a train at 180 km/h with this machine's TCP through the proxy: 32 minutes
	$(CARGO) build --release --locked -p bentpipe
	$(AS_ROOT) target/release/bentpipe lab run explicit-railway --on kernel --out docs/experiments

peers: setup ## the simulator beside ns-3: single flows, handshakes, speed
	scripts/setup-peers ns3
	peers/ns3/build
	$(CARGO) build --release --locked -p bentpipe-lab --examples
	target/release/examples/against_ns3

interop-dtn: setup ## bundles between bentpipe and dtn7-rs, both ways, whoever connects
	scripts/setup-peers dtn7
	$(CARGO) build --release --locked -p bentpipe
	$(CARGO) build --release --locked -p bentpipe-dtn --example against_dtn7
	target/release/examples/against_dtn7 interop $(OPTIONS)

conformance: setup ## which clauses of the standards the bundle node's tests show: docs/conformance.md
	scripts/conformance

neighbours: setup ## firewalls, NAT, VPNs, bridges beside bentpipe: the table of docs/neighbours.md, minutes
	scripts/setup-peers neighbours
	$(CARGO) test --locked -p bentpipe-proxy --test root_neighbours --no-run
	rm -rf target/neighbours && mkdir -p target/neighbours
	$(AS_ROOT) env "PATH=$$PATH" "RUST_TEST_THREADS=$$RUST_TEST_THREADS" BENTPIPE_NEIGHBOUR_ROWS="$(CURDIR)/target/neighbours" \
		$(CARGO) test --locked -p bentpipe-proxy --test root_neighbours -- --include-ignored
	scripts/neighbours-table target/neighbours docs/neighbours.md

squid: setup ## Squid on the gateway with bentpipe's Hybla, the guide's test, and its figures beside splitting: 6 minutes
	scripts/setup-peers squid
	$(CARGO) test --locked -p bentpipe-lab --test root --no-run
	$(AS_ROOT) env "PATH=$$PATH" $(CARGO) test --locked -p bentpipe-lab --test root squid
	$(CARGO) build --release --locked -p bentpipe-lab --example squid
	$(AS_ROOT) env "PATH=$$PATH:/usr/sbin:/sbin" target/release/examples/squid 5 docs/guides/squid.md

unsplit: setup ## what cannot be split: QUIC, WireGuard and ESP over a GEO link that loses packets, protected and not; three quarters of an hour
	scripts/setup-peers vpn
	$(CARGO) build --release --locked -p bentpipe
	$(AS_ROOT) env "PATH=$$PATH" target/release/bentpipe lab run quic vpn quic-one-box leg-shares --on kernel --out docs/experiments

kernels: setup ## the tests that depend on the kernel on Debian's 6.1 and 6.12 in QEMU: the table of docs/kernels.md, 20 minutes
	scripts/setup-peers kernels
	scripts/fetch-kernels 6.1.0 6.12
	$(AS_ROOT) env "PATH=$$PATH" scripts/kernels

python: setup ## the Python package: its types, its tests beside the program, with interrupts, resumed sweeps and Dask, and the notebooks (PYTHON=python3.9)
	scripts/setup-peers python
	scripts/python test $(OPTIONS)
	scripts/python notebooks

wheel: setup ## the Python package as a wheel for CPython from 3.9 on: target/python/wheels
	scripts/setup-peers python
	scripts/python wheel --release

bench-python: setup ## 10,000 runs in Python: on one core, on all, on Dask's workers, and with one of them killed
	scripts/setup-peers python
	scripts/python bench $(OPTIONS)

optimised: setup ## a program that simulates faster, compiled for what simulations do: target/optimised/release/bentpipe; a quarter of an hour
	@scripts/setup-peers llvm
	scripts/optimise

package: setup ## the Debian package, target/package/bentpipe_VERSION_ARCH.deb
	$(CARGO) build --release --locked -p bentpipe
	scripts/package target/release/bentpipe target/package

try-package: package ## the package in a clean Debian, and as a service under systemd: minutes (needs debootstrap)
	$(AS_ROOT) scripts/try-package target/package/bentpipe_*_$$(dpkg --print-architecture).deb

router: setup ## the small static program for routers, for amd64 and arm64: target/router/bentpipe-ARCH, and its size
	scripts/setup-peers arm64
	scripts/router x86_64 aarch64

openwrt: router ## OpenWrt packages of it: make openwrt ARCHITECTURE=aarch64_cortex-a53, or x86_64
	scripts/package-openwrt target/router $(ARCHITECTURE)

image: setup ## a container image of it for this architecture, and a trial: the container as a gateway, with downloads
	scripts/setup-peers container
	scripts/router
	$(AS_ROOT) env "PATH=$$PATH" scripts/image target/router/bentpipe-$$(uname -m)
	$(AS_ROOT) env "PATH=$$PATH" scripts/try-image

arm64: setup ## arm64 on any machine: unit tests, package and static program in QEMU; an hour
	scripts/setup-peers arm64
	$(AS_ROOT) env "PATH=$$PATH" scripts/arm64

fuzz: setup ## fuzz targets from their corpora: make fuzz RUNS=10000000 TARGETS="syn cbor"
	@scripts/setup-peers fuzz
	scripts/fuzz $(if $(RUNS),-r $(RUNS)) $(if $(SECONDS),-s $(SECONDS)) $(TARGETS)

soak: setup ## hours of churn, orders, faults and outages, and accounts at the end: make soak HOURS=1 OPTIONS="--seed 7"
	$(CARGO) build --release --locked -p bentpipe --bin bentpipe --example soak
	$(AS_ROOT) target/release/examples/soak --minutes $$(( 60 * $(or $(HOURS),1) )) $(OPTIONS)

deny: ## licences, sources and known vulnerabilities of the dependencies
	@scripts/setup-peers deny
	@scripts/deny

setup: ## install what building needs, if it is missing
	@scripts/setup

clean:
	$(CARGO) clean
