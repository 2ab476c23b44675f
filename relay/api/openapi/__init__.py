"""What the API is, as a document: OpenAPI 3.1, from the routes' declarations and the models that validate bodies."""
