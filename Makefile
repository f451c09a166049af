# make            this list
# A fresh clone needs git, make and a C compiler; `make demo` and `make test` bring the rest.
SHELL := /bin/bash
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CTEST = ctest -j$(JOBS) --output-on-failure --no-tests=error
sources = $(shell git ls-files '*.c' '*.h' 2>/dev/null || find src include tests examples -name '*.[ch]')

LONG_FUZZ_SECONDS ?= 3600

.PHONY: help deps build dev demo test test-tsan test-fuzz test-tiles test-dist test-long cov bench format format-check install install-dist clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## this list
	@echo 'make TARGET'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | \
	    awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}' | sort
	@echo 'The program is build/iwp; `build/iwp --help` goes on from there.'

deps:
	@scripts/install-deps

# $(call preset,NAME[,TARGETS]): configure once, build.
preset = mkdir -p build; cmake --preset $(1) >build/configure-$(1).log 2>&1 || \
    { cat build/configure-$(1).log; exit 1; }; cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))

build: deps ## build/iwp, optimised
	@$(call preset,release)

dev: deps ## build/dev/iwp with sanitizers, warnings are errors
	@$(call preset,dev)

demo: build ## a question about a photograph with and without pruning; overlay in out/demo.png
	@scripts/demo

test: format-check test-fuzz test-tsan test-dist build dev test-tiles ## everything, some minutes; ends with CTest's summary
	@echo '== release'; cd build && $(CTEST)
	@echo '== dev (address and undefined-behaviour sanitizers)'; cd build/dev && $(CTEST)

test-tsan: deps
	@echo '== tsan'; $(call preset,tsan)
	@cd build/tsan && $(CTEST) -R '^(unit/pool|unit/log|prune/|cli/demo)'

# What comes after AMX's own CPUs: its paths on tiles made of AVX512-BF16.  ggml's AMX is not there, and engine/bulk is about that.
test-tiles: build
	@if build/iwp --cpu-info | grep -q '^towers *amx'; then echo '== tiles: this CPU has its own'; \
	else echo '== tiles'; $(call preset,tiles) && if build/tiles/iwp --cpu-info | grep -q '^towers *amx'; then \
	    cd build/tiles && $(CTEST) -R '^(kern/(gemm|attn)|engine|model|towers)' -E '^engine/(bulk|bench)|_(c|avx2|avx512)$$'; \
	    else echo 'no AVX512-BF16 to make them of: left out'; fi; fi

test-dist: deps
	@echo '== dist'; $(call preset,dist)
	@tests/cli/test_install build/dist clang-19 && tests/cli/test_dist build/dist clang-19

FUZZ_SECONDS ?= 10
test-fuzz: deps
	@echo '== fuzz'; $(call preset,fuzz,fuzzers)
	@scripts/fuzz $(FUZZ_SECONDS)

test-long: ## make test, then every fuzzer for an hour and many more random cases
	@$(MAKE) test
	@$(MAKE) test-fuzz FUZZ_SECONDS=$(LONG_FUZZ_SECONDS)
	@cd build && IWP_TEST_LONG=1 $(CTEST)

cov: deps ## lines the tests reach, by file (gcovr)
	@scripts/install-deps gcovr llvm-19; $(call preset,cov)
	@cd build/cov && $(CTEST) >ctest.log || { tail -20 ctest.log; exit 1; }
	@gcovr --gcov-executable 'llvm-cov-19 gcov' -r . -f src/ build/cov

bench: build ## timings of the selection beside sgemm (whole grid: iwp bench select)
	@build/iwp bench select --tokens 320,2048
	@build/iwp bench select --tokens 16384 --keep 0.111 --selector pc-mmr
	@build/iwp bench select --tokens 16384,65536 --keep 0.353 --selector topk

format: deps ## clang-format on all sources
	@clang-format-19 -i $(sources)

format-check: deps
	@bad=$$(for f in $(sources); do clang-format-19 "$$f" | cmp -s - "$$f" || echo "$$f"; done); \
	    [ -z "$$bad" ] || { echo "not formatted (make format):" $$bad; exit 1; }

install: build ## program, library, headers, pkg-config and CMake files below PREFIX, for this CPU
	@cmake --install build --prefix $(PREFIX)

install-dist: deps ## the same for all CPUs: ggml once per instruction set, in PREFIX/lib/iwp
	@$(call preset,dist)
	@cmake --install build/dist --prefix $(PREFIX)

clean: ## remove build/ and out/
	@rm -rf build out

-include mk/*.mk
