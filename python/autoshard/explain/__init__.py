"""Why a plan is as it is: its record, and what people and tools read of it."""
