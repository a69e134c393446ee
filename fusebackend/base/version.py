"""The version of the package, for `fusebackend.__version__`, the command line and the control socket."""

__version__ = "0.1.0"
