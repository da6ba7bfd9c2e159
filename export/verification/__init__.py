"""Whether graphs compute what they stand for, and what a precision costs: the content of a bundle's certificates."""
