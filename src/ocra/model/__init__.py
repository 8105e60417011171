"""The network: Pseudocode 1, its parts, and its weights."""
