"""The producer's side: the Python client, the command line, datasets, the demo."""
