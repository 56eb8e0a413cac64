"""One module per command: read the options, ask the API for a dictionary, print it as JSON or through a view."""
