"""Benchmarks run by `farrier bench train` on a GPU: models, step variants, and one shard of the
measurement.
"""
