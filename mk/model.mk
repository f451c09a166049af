# The shipped model and its test data. Both need python3 with pip; what they need of Python packages
# (numpy, Pillow) is fetched into out/python when the system has none.
.PHONY: model data train-model model-table

model: ## the shipped model, fetched and joined in ~/.cache/iwp/models
	scripts/get-model

data: ## manifests of the generated tasks in out/data
	@python3 -c 'import PIL, numpy' 2>/dev/null || [ -d out/python ] || \
	  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target out/python numpy pillow
	PYTHONPATH=out/python python3 train/manifests.py --out $${IWP_DATA:-out/data}

train-model:
	train/run

# Every method and budget on the shipped model, into its card: 372 questions under 70 configurations, about 11 CPU seconds a
# question; three quarters of an hour on two idle cores.
model-table: build model data
	scripts/model-table
