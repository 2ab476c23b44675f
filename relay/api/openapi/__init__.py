"""Builds the OpenAPI 3.1 document from the routes' declarations and the models that validate bodies."""
