# The network of docs/tutorial.md on slivers of two boards: every step of life.sh in seconds.
# shellcheck shell=bash disable=SC2034
model=examples/tutorial/model.onnx recipe=$LAB/recipe.toml devices=$LAB/cluster.toml data=$LAB/data.toml
# the model never had a norm; the first plan found will do; C++ that compiles quickly
importing=(--norm as-is) placing=(--gap 0.9 --no-split) serving=(--no-optimise)
# of the few frames of nine batches some have to be lost
loss=1e-2
