"""Shapes of the API: the JSON of requests and responses, in modules by resource.

The API, the client, the command line and the pages use them. They import nothing but the domain.
"""
