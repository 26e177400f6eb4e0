"""What `farrier bench train` runs on a GPU: models, variants of the step, and one shard of the measurement."""
