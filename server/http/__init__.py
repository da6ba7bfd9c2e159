"""The HTTP API and the playground: requests in JSON become calls of the very methods that gRPC serves."""
