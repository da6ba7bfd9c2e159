"""The project's version, where both distributions, the user agent and the images read it."""

VERSION = "0.2.0"
