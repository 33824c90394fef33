"""Finding, loading, initializing, converting and comparing models."""
