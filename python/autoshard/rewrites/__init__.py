"""Changes of a module that keep its meaning: what is computed again, when, from where; pins."""
