"""The producer side submits work: the Python client, the command line, datasets, the demo."""
