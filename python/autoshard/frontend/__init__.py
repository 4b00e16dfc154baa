"""What users call: ``jit``, ``plan``, ``shard`` and ``Layout``."""
