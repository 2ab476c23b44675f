"""What the API is, as a document: OpenAPI 3.1, from the models that validate and are answered.

A table per noun lists its routes; whoever adds a route adds it there, and a test asks for it.
"""
