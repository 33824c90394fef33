"""Labels and numbers of texts and pairs of texts."""
