"""From a user's photograph to a model's image."""
