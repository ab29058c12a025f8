"""Speed at full size: real pipelines with random weights, our plans and the rivals' caches."""
