# The shipped model and its test data. `model` needs python3 with pip; `data` also Pillow.
.PHONY: model data train-model

model:
	scripts/get-model

data:
	python3 train/manifests.py --out $${IWP_DATA:-out/data}

train-model:
	train/run
