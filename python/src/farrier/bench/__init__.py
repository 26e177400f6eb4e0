"""Benchmarks run by `farrier bench train` on a GPU: models, step variants and single shards."""
