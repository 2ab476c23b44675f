"""Shapes of the API: the JSON of requests and responses, one module for each resource.

The API, the client, the command line and the pages use them. They import nothing but the domain.
"""
