"""What a request may ask of a bundle, and how it is answered: one set of checks for whoever takes requests.

Values are plain here, and named as in the API. What a caller leaves out is absent.
"""
