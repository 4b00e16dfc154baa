"""Why a plan is as it is, what others would cost, and what people and tools read of it."""
