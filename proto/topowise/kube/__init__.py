"""Raw access to the API server: credentials, requests, and a reflector that keeps a local copy of a collection."""
