"""The distribution's version, where the build and the user agent read it."""

VERSION = "0.1.0"
