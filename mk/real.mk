# Real weights: SmolLM2-135M-Instruct (Apache-2.0), fetched and checked like the parts of the shipped model.
.PHONY: test-real
test-real: build ## 64 greedy tokens of a real model, equal to llama.cpp's (fetches 93 MB once)
	@scripts/test-real
