# Every target does its own set-up, also on a fresh clone.
# Needs Python 3.11+ and make; everything else is installed into .venv from hack/requirements-dev.txt.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE =

.PHONY: help venv demo demo-stop test nightly check bench e2e soak plugin lab fuzz mutants coverage audit sbom application images load push chart docs-site sign release-check release-notes rehearsal changelog gen-proto gen-reference fix clean

help: ## Lists all targets.
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target what; do \
	  printf '%-14s %s\n' "$$target" "$$what"; done

venv: .venv/stamp ## The environment that all targets need, from the lock.

.venv/stamp: hack/requirements-dev.txt pyproject.toml hack/venv
	@PYTHON="$(PYTHON)" hack/venv

demo: venv ## A five-node cluster on loopback: exporters, scheduler, verdicts. KEEP=1 leaves it running.
	@$(BIN)/python -m demo $(if $(KEEP),--keep)

demo-stop: venv ## Stops the demo that make demo KEEP=1 left running.
	@$(BIN)/python -m demo --stop

test: venv ## Unit, contract and integration tests of what ships (two minutes on 2 cores).
	@$(BIN)/python -m pytest -n $(or $(WORKERS),2) --dist worksteal $(ARGS)

nightly: venv ## What make test leaves out, part by part: tools, thorough, cluster, browser, storms, kubectl, fuzz, soak, mutants, bench, e2e; PART=.
	@hack/nightly $(PART)

check: venv ## Formatting, lint, types, import directions, generated code.
	@hack/check

bench: venv ## Figures of processes and hot paths, as tables and JSON; PART=exporter|engine|scheduler|density, ARGS=--against.
	@$(BIN)/python -m bench $(PART) $(ARGS)

# A test here may take minutes on a busy machine, and the time limit of a test ends the whole run.
e2e: venv ## Slow tests on real processes, about an hour; not part of make test.
	@$(BIN)/python -m pytest tests/e2e -o faulthandler_timeout=1800 $(ARGS)

lab: venv ## Real kubelets on machines with several NUMA nodes, as root: ARGS="up dual", ARGS="test dual --pods 300", ARGS=status, ARGS=down.
	@$(BIN)/python -m lab $(ARGS)

soak: venv ## Random clusters with faults: does every wrong answer have a known cause? SECONDS=600, SEED.
	@$(BIN)/python hack/soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: venv ## Every parser with damaged input, guided by coverage if atheris is installed; SECONDS per parser.
	@$(BIN)/python hack/fuzz $(or $(SECONDS),20) $(NAME)

mutants: venv ## Plants mistakes in a copy of a zone (kubelet): do its tests fail? ARGS="--zone engine --count 300 --seed 1", --all.
	@$(BIN)/python hack/mutants $(ARGS)

# The tests' workers and the daemons that they start count too.
coverage: venv ## Lines and branches that the tests run, by module, the least covered first; slower than make test.
	@rm -rf .venv/coverage && mkdir -p .venv/coverage
	@$(BIN)/coverage run -m pytest $(or $(ARGS),-n 2); status=$$?; $(BIN)/coverage combine --quiet && \
	  $(BIN)/coverage report --sort=cover --skip-covered && exit $$status

audit: venv ## Known vulnerabilities of the locked run-time dependencies; needs access to a database (AUDIT_SERVICE).
	@hack/audit

sbom: venv ## The shipped components as a CycloneDX document with licences: dist/topowise.cdx.json.
	@hack/sbom

application: venv ## What of the image needs no container engine: its size for both architectures, and whether it starts.
	@$(BIN)/python -m images check

images: venv ## The container image as dist/topowise-ARCH.tar, with buildah, podman or docker; ARCH="amd64 arm64", BASE=image.
	@$(BIN)/python -m images build $(addprefix --architecture ,$(ARCH)) $(if $(BASE),--base $(BASE)) $(if $(IMAGE),--repository $(IMAGE))

load: venv ## Loads the image into a cluster without a registry: INTO=kind|k3s|containerd, CLUSTER= for kind's name.
	@$(BIN)/python -m images load $(if $(INTO),--into $(INTO)) $(if $(CLUSTER),--cluster $(CLUSTER))

plugin: venv ## kubectl-topowise as a file for this machine, and krew's manifest; PLATFORM=all for all, NUMPY=1 with numpy.
	@$(BIN)/python -m laptop $(addprefix --platform ,$(PLATFORM)) $(if $(NUMPY),--with-numpy) $(if $(ADDRESS),--address $(ADDRESS))

push: venv ## Pushes all built architectures to the registry of IMAGE as an image index; writes its digest to dist/topowise.digest.
	@$(BIN)/python -m images push $(if $(IMAGE),--repository $(IMAGE))

chart: ## The chart as dist/topowise-VERSION.tgz; PUSH=oci://registry/path sends it there.
	@hack/release chart $(PUSH)

docs-site: venv ## The pages of docs/ as a site in dist/site; warnings are errors.
	@hack/docs-site

sign: venv ## Signs the digest that make push has pushed; needs cosign, in a workflow without a key.
	@$(BIN)/python -m images sign $(if $(IMAGE),--repository $(IMAGE))

release-check: ## Checks that package and chart have the same version, and with TAG that the tag has it as well.
	@hack/release version $(TAG)

release-notes: ## Writes the section of TAG in CHANGELOG.md (default: unreleased, with changes/) to dist/notes.md.
	@hack/release notes $(TAG)

rehearsal: release-check application chart plugin sbom docs-site release-notes ## What of a release needs no engine, registry or forge.

changelog: ## Moves the fragments of changes/ into CHANGELOG.md, as the section of VERSION.
	@hack/changes release $(VERSION)

gen-proto: venv ## Regenerate proto/topowise/wire from proto/*.proto.
	@$(BIN)/python hack/gen-proto

gen-reference: venv ## Write docs/reference and the chart's schema from the code, and render the kustomizations.
	@$(BIN)/python hack/gen-reference && $(BIN)/python hack/gen-chart

fix: venv ## Formats, and fixes what ruff can fix.
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean: ## Remove the environment and caches.
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache dist
