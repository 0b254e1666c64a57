"""The producer side: the Python client, the command line, datasets and the demo."""
