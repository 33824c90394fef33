"""Everything that the commands and the three libraries' users only import."""

# What precedes the names of modules: "bert." in the installed package.
PREFIX = __name__.removesuffix("bertlib")
