"""A simulated inference engine: what a paged KV cache and a batch do to time, without a model."""
